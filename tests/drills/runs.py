"""One run under a drill: started by the real command, struck as planned, resumed until it has finished."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.config.load import load_config
from paceline.config.write import write_config
from paceline.errors import ExitCode
from paceline.launch.peers import process_file
from paceline.loop.stopping import StopRequest
from paceline.loop.train import run as train
from paceline.records.folder import RunFolder
from paceline.records.reader import Record, read
from tests.drills import plan as plans
from tests.drills.plan import LAUNCHER, Fault, Plan
from tests.drills.processes import (
    MARK,
    SharedMemory,
    end_all,
    processes_of,
    seconds_until_gone,
)
from tests.ranks import run_ranks

ROOT = Path(__file__).parents[2]
LONGEST_S = 120.0  # of one attempt of a launch, on a busy machine
COMMAND = [sys.executable, "-m", "paceline"]


def settings(**sets: Any) -> dict[str, Any]:
    """A small run with everything that must survive a kill; `section__key=value` on top."""
    values: dict[str, Any] = {
        "deterministic": True,
        "device": "cpu",
        "data.workers": 0,
        "parallel.threads": 1,  # more of them wait for each other where other work shares the cores
        "model.name": "tests.drills.model:model",
        "train.epochs": 6,
        "train.global_batch": 96,
        "optim.clip_norm": 0.5,
        "optim.ema_decay": 0.9,
        "checkpoint.every_steps": 2,
        "checkpoint.keep_last": 1,
        "launch.max_restarts": 1000,
        "launch.timeout_s": 60.0,
        "records.samples": True,
    }
    return values | {key.replace("__", "."): value for key, value in sets.items()}


@dataclass
class Launch:
    """One process of the command, from start to end."""

    arguments: list[str]
    code: int
    seconds: float
    gone_after_s: float  # how long its ranks outlived it


@dataclass
class DrillRun:
    """
    folder: holds the run's own folder, `run`, and the plan. num_unborn: launches that were killed before they had
    made a run that could be resumed.
    """

    folder: Path
    config: dict[str, Any]
    launches: list[Launch] = field(default_factory=list)
    num_unborn: int = 0
    num_leftovers: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        config = load_config(flags=self.config).config
        (self.folder / "drill.toml").write_text(write_config(config))
        self.mark = uuid.uuid4().hex
        self.run = RunFolder(self.folder / "run")
        self.use([])

    def use(self, faults: Sequence[Fault]) -> None:
        """From the next launch on, these strike."""
        name = f"plan-{len(list(self.folder.glob('plan-*')))}"
        self.plan = Plan.make(self.folder / name, faults)

    def undisturbed(self, *, quick: bool) -> None:
        """Runs to the end as a reference. quick: without the command, by ranks that start in 0.1 s."""
        if not quick:
            self.to_the_end()
            return
        self.run.create()
        shutil.copy(self.folder / "drill.toml", self.run.config)
        run_ranks(_train, load_config(self.run.config).config.parallel.ranks, self.run.path)

    def to_the_end(self, *arguments: str) -> None:
        """Launches and, where the launcher was killed, resumes, until the run has finished."""
        while (code := self.launch(*arguments)) != ExitCode.OK:
            launch = len(self.launches) - 1
            victims = [each["victim"] for each in self.plan.struck() if each["launch"] == launch]
            assert code == -9 and LAUNCHER in victims, f"exit code {code}:\n{self.output()}"

    def launch(self, *arguments: str, command: Sequence[str] = COMMAND) -> int:
        """Starts the run or goes on with it; returns the exit code when nothing of it is left."""
        arguments = (*self._what(), *arguments)
        memory, start = SharedMemory(self.mark), time.monotonic()
        try:
            with open(self.folder / "output.txt", "ab") as output:
                process = subprocess.Popen(
                    [*command, "train", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    env=self._environ(),
                )
            code = self._follow(process, memory, start + self._longest_s())
            gone_after_s = seconds_until_gone(self.mark)
        finally:
            end_all(self.mark)
        memory.check()
        seconds = time.monotonic() - start
        self.launches.append(Launch(list(arguments), code, seconds, gone_after_s))
        return code

    def check_clean(self) -> None:
        """What ranks saw of earlier attempts, and what is left at the end."""
        for path in self.folder.glob("plan-*"):
            plan = Plan(path)
            for event in plan.events("built"):
                assert not event["earlier"], f"processes outlived their attempt: {event}"
            for event in plan.events("trained"):
                assert not event["still_there"], f"partial checkpoints stay: {event}"
                self.num_leftovers += event["partial"]
        left = [path.name for path in self.run.checkpoints.glob(".*")]
        assert not left, f"partial checkpoints are left: {left}"

    def struck(self) -> list[dict[str, Any]]:
        return [each for path in self.folder.glob("plan-*") for each in Plan(path).struck()]

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run.result.read_text())
        return found

    def records(self, rank: int) -> list[Record]:
        path = self.run.records(rank)
        return read(path) if path.exists() else []

    def output(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")[-4000:]

    def _what(self) -> list[str]:
        if self.run.config.exists():
            return ["--resume", str(self.run.path)]
        if self.launches:
            self.num_unborn += 1
            shutil.rmtree(self.run.path, ignore_errors=True)
        return ["drill.toml", "--run", str(self.run.path)]

    def _environ(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            MARK: self.mark,
            plans.FOLDER: str(self.plan.folder),
            plans.LAUNCH: str(len(self.launches)),
        }

    def _longest_s(self) -> float:
        struck = len(self.plan.struck())
        return LONGEST_S * (1 + len(self.plan.faults()) - struck)

    def _follow(
        self, process: subprocess.Popen[bytes], memory: SharedMemory, deadline: float
    ) -> int:
        began = time.time()
        while process.poll() is None:
            assert time.monotonic() < deadline, f"the run does not end:\n{self.output()}"
            memory.look()
            fault = self.plan.next()
            if fault is not None and fault.where == "outside":
                self._strike(fault, process.pid, began)
            time.sleep(0.05)
        return process.returncode

    def _strike(self, fault: Fault, launcher: int, began: float) -> None:
        """Carries out a fault from outside when its victim has lived that long."""
        launch, attempt, process = len(self.launches), -1, launcher
        if fault.victim == LAUNCHER:  # it lives through the faults of its ranks
            began = max([began, *(each["time"] for each in self.plan.struck())])
        else:
            path = process_file(self.run, fault.rank)
            try:
                began, told = path.stat().st_mtime, json.loads(path.read_text())
            except (OSError, ValueError):
                return
            process, attempt = told["pid"], told["attempt"]
        ready = time.time() - began >= fault.delay_s and self._is_ours(process)
        if ready and self.plan.next_for(launch, attempt) == fault:
            self.plan.strike(fault, process, launch=launch, attempt=attempt)

    def _is_ours(self, process: int) -> bool:
        return process in {each.pid for each, _ in processes_of(self.mark)}


def _train(path: Path) -> str:
    folder = RunFolder(path)
    return train(folder, load_config(folder.config).config, stop=StopRequest())
