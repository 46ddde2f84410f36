"""What is to strike a run, and what has: a folder that the drill and the ranks of its run share."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER = "PACELINE_DRILL"  # in a rank's environment: the plan's folder
PHASES = ("snapshot", "write", "writing", "rename", "renamed", "prune", "removing")
LAUNCH = "PACELINE_DRILL_LAUNCH"  # and the number of the launch in the drill
LAUNCHER = -1  # as a victim


@dataclass(frozen=True)
class Fault:
    """
    where: step (a forward pass), evaluation, build (of the model), a phase of the checkpoint store, or outside: the
        drill itself strikes, `delay_s` after the victim started.
    after: at the how-manieth time that an attempt comes there. rank: whose process strikes.
    victim: rank, or LAUNCHER. how: a signal's name, exception or exit.
    """

    number: int
    where: str
    after: int = 1
    rank: int = 0
    victim: int = 0
    how: str = "SIGKILL"
    delay_s: float = 0.0

    @property
    def kind(self) -> str:
        whose = "launcher" if self.victim == LAUNCHER else "rank"
        return f"{whose} {self.how} {self.where}"


class Plan:
    """The faults of one run, in order; each strikes once, the next one in the next attempt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def make(folder: Path, faults: Sequence[Fault]) -> Plan:
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps([asdict(fault) for fault in faults]))
        return Plan(folder)

    def faults(self) -> list[Fault]:
        return [Fault(**each) for each in json.loads((self.folder / "plan.json").read_text())]

    def next(self) -> Fault | None:
        struck = {path.name for path in self.folder.glob("struck-*")}
        return next((f for f in self.faults() if _name(f) not in struck), None)

    def next_for(self, launch: int, attempt: int) -> Fault | None:
        """The next fault, for a process of this attempt: none where the attempt was struck already."""
        struck = self.struck()
        over = bool(struck) and (struck[-1]["launch"], struck[-1]["attempt"]) == (launch, attempt)
        return None if over else self.next()

    def strike(self, fault: Fault, process: int, *, launch: int, attempt: int, **told: Any) -> bool:
        """Notes the fault and sends its signal; False where another process was faster."""
        told |= {
            **asdict(fault),
            "launch": launch,
            "attempt": attempt,
            "kind": fault.kind,
            "process": process,
            "time": time.time(),
        }
        partial = self.folder / f".{_name(fault)}-{os.getpid()}"
        partial.write_text(json.dumps(told))
        try:
            os.link(partial, self.folder / _name(fault))
        except FileExistsError:
            return False
        finally:
            partial.unlink()
        if fault.how.startswith("SIG"):
            os.kill(process, signal.Signals[fault.how])
        return True

    def struck(self) -> list[dict[str, Any]]:
        """What struck, in order of time."""
        found = [json.loads(path.read_text()) for path in self.folder.glob("struck-*")]
        return sorted(found, key=lambda each: each["time"])

    def tell(self, event: str, **told: Any) -> None:
        """Appends to what ranks saw."""
        line = json.dumps({"event": event, "time": time.time(), **told}) + "\n"
        with open(self.folder / "events.jsonl", "ab", buffering=0) as file:
            file.write(line.encode())

    def events(self, event: str) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [each for each in map(json.loads, lines) if each["event"] == event]


def _name(fault: Fault) -> str:
    return f"struck-{fault.number:03d}"


def random_faults(generator: random.Random, num: int, num_ranks: int) -> list[Fault]:
    """SIGKILLs of every kind, in a random order; the same kinds again when they are used up."""
    kinds: list[tuple[str, int]] = []
    while len(kinds) < num:
        once = [(where, 0) for where in (*PHASES, "step", "step", "step", "evaluation", "build")]
        once += [("outside", 0), ("outside", 0), ("outside", LAUNCHER), ("step", LAUNCHER)]
        once += [(generator.choice(PHASES[1:]), LAUNCHER)]
        generator.shuffle(once)
        kinds += once
    return [_fault(generator, number, *kinds[number], num_ranks) for number in range(num)]


def _fault(generator: random.Random, number: int, where: str, victim: int, num_ranks: int) -> Fault:
    rank = 0 if where == "removing" else generator.randrange(num_ranks)
    after, delay_s = 1, 0.0
    if where == "step":
        after, delay_s = (
            generator.randint(1, 16),
            generator.choice([0.0, 0.05 * generator.random()]),
        )
    elif where == "outside":
        delay_s = generator.uniform(0.0, 6.0) + 3.0 * (victim == LAUNCHER)
    elif where in PHASES:
        after = generator.randint(1, 4)
    return Fault(
        number, where, after, rank, rank if victim != LAUNCHER else victim, "SIGKILL", delay_s
    )
