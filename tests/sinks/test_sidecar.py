"""The process beside a run: it gets what a real run records, and its death costs the run nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import paceline
from paceline.config.load import load_config
from paceline.records.folder import RunFolder
from paceline.records.reader import read, steps
from paceline.records.writer import RecordWriter
from paceline.sinks import sidecar
from tests.api.test_train import TINY, regression
from tests.sinks.planted import plant, recorded, write_step
from tests.sinks.test_files import read_tables, read_tensorboard


def test_a_real_run(tmp_path: Path) -> None:
    sinks = {"records.sinks": ["csv", "tensorboard"], "parallel.strategy": "single"}
    result = paceline.train(
        TINY | sinks, model=nn.Linear(3, 1), data=regression(), eval_data=regression(16), loss=nn.MSELoss(),
        run=tmp_path / "r", show=False,
    )  # fmt: skip
    expected = [(r["step"], r["loss"]) for r in steps(read(tmp_path / "r/records/rank-0.jsonl"))]
    assert len(expected) == result.step == 8
    assert read_tables(tmp_path / "r/csv")["train/loss"] == expected
    events = read_tensorboard(RunFolder(tmp_path / "r"))
    assert [e.step for e in events.Scalars("train/loss")] == [*range(1, 9)]
    assert any("Linear" in node.name for node in events.Graph().node)


def test_killed_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plant(tmp_path / "r", records__sinks=["csv"])
    started = []
    popen = sidecar.subprocess.Popen
    monkeypatch.setattr(
        sidecar.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
    )
    said: list[str] = []
    config = load_config(folder.config).config
    with sidecar.tracked(folder, config, said.append):
        while not (folder.path / "csv/epochs.csv").exists():
            time.sleep(0.05)
        os.kill(started[0].pid, signal.SIGKILL)
        with RecordWriter(folder.records(0)) as records:
            write_step(records, 13, np.random.default_rng(0))
    assert [sentence.split(";")[0] for sentence in said] == [
        "the process that serves the trackers was ended (SIGKILL)"
    ]
    with sidecar.tracked(folder, config, said.append):
        pass
    assert len(said) == 1
    assert read_tables(folder.path / "csv") == recorded(folder)
