"""TensorBoard by its own reader, CSV, and Weights & Biases offline give back the numbers of the records."""

from __future__ import annotations

import csv
import json
import struct
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import paceline
from paceline.errors import UserError
from paceline.records.folder import RunFolder
from paceline.sinks import tracker
from tests.sinks.planted import plant, recorded, write_attempt

Series = dict[str, list[tuple[int, float]]]


def test_tensorboard(tmp_path: Path) -> None:
    folder = plant(tmp_path / "r")
    with SummaryWriter(str(folder.graph)) as writer:
        writer.add_graph(nn.Linear(2, 1), torch.zeros(1, 2))
    assert paceline.track(folder.path, ["tensorboard"], quiet=True) == []
    events = read_tensorboard(folder)
    assert events.Images("inputs")[0].width == 2
    assert events.Graph().node
    hyper = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    assert b"optim.base_lr" in hyper
    assert [e.value for e in events.Scalars("final/accuracy")] == [0.75]
    check_float32(events, folder)

    write_attempt(folder, 9, 14)  # resumed: the same steps are not there twice
    assert paceline.track(folder.path, ["tensorboard"], quiet=True) == []
    check_float32(read_tensorboard(folder), folder)


def read_tensorboard(folder: RunFolder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(
        str(folder.path / "tensorboard"), size_guidance=dict.fromkeys(["scalars", "images"], 0)
    )
    return events.Reload()


def check_float32(events, folder: RunFolder) -> None:
    for name, expected in recorded(folder).items():
        found = [(e.step, e.value) for e in events.Scalars(name)]
        assert found == [(step, float(np.float32(value))) for step, value in expected], name


def test_csv(tmp_path: Path) -> None:
    folder = plant(tmp_path / "r", sinks__folder=str(tmp_path / "all"))
    assert paceline.track(folder.path, ["csv"], quiet=True) == []
    assert read_tables(tmp_path / "all" / "r" / "csv") == recorded(folder)
    write_attempt(folder, 9, 14)
    assert paceline.track(folder.path, ["csv"], quiet=True) == []
    assert read_tables(tmp_path / "all" / "r" / "csv") == recorded(folder)


def read_tables(path: Path) -> Series:
    found: Series = defaultdict(list)
    for file in ("steps.csv", "evaluations.csv", "epochs.csv"):
        with open(path / file, newline="") as lines:
            for row in csv.DictReader(lines):
                for name in NAMES & row.keys():
                    found[name].append((int(row["step"]), float(row[name])))
    return dict(found)


NAMES = {
    "train/loss",
    "train/accuracy",
    "lr",
    "time/forward_s",
    "eval/loss",
    "eval/by_class/dog",
    "epoch/train_loss",
}


def test_wandb_offline(tmp_path: Path) -> None:
    folder = plant(tmp_path / "r", sinks__wandb_mode="offline")
    assert paceline.track(folder.path, ["wandb"], quiet=True) == []
    assert read_wandb(folder) == recorded(folder)
    run_id = json.loads(folder.sent("wandb").read_text())["run"]
    write_attempt(folder, 9, 14)
    assert paceline.track(folder.path, ["wandb"], quiet=True) == []
    assert read_wandb(folder) == recorded(folder)
    assert json.loads(folder.sent("wandb").read_text())["run"] == run_id


def read_wandb(folder: RunFolder) -> Series:
    """The one offline file, through W&B's own messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.path.glob("wandb/offline-run-*/run-*.wandb")
    found: Series = defaultdict(list)
    for data in log_records(file.read_bytes()):
        record = Record.FromString(data)
        items = [(i.key or "/".join(i.nested_key), i.value_json) for i in record.history.item]
        row = {key: json.loads(value) for key, value in items}
        for name in NAMES & row.keys():
            found[name].append((row["step"], row[name]))
    return dict(found)


def log_records(data: bytes) -> list[bytes]:
    """The records of a file in LevelDB's log format: blocks of 32 KiB, records in one or more chunks."""
    records, parts, at = [], b"", 7  # behind the file's own header
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if kind == 0:
            break
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last chunk
            records.append(parts)
            parts = b""
    return records


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plant(tmp_path / "r")
    with pytest.raises(UserError, match="was started without sinks"):
        paceline.track(folder.path)
    with pytest.raises(UserError, match="did you mean 'mlflow'"):
        paceline.track(folder.path, ["mlfow"])
    with pytest.raises(UserError, match="no run folder"):
        paceline.track(tmp_path, ["csv"])
    with pytest.raises(UserError, match=r"records.sinks = .* names 'tensorbord'"):
        paceline.load_config(sets=["records.sinks=csv,tensorbord"])
    with pytest.raises(UserError, match="MLFLOW_TRACKING_PASSWORD"):
        paceline.load_config(sets=["sinks.mlflow_uri=http://me:secret@host:5000"])
    monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'paceline\[wandb\]'"):
        paceline.train({"records.sinks": ["wandb"], "runs": str(tmp_path / "runs")})
    assert not (tmp_path / "runs").exists()
