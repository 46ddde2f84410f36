"""A run folder as a run leaves it, without the run: two attempts, of which the second takes steps again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from paceline.config.load import load_config
from paceline.config.write import write_config
from paceline.records.folder import RunFolder
from paceline.records.reader import latest, read
from paceline.records.writer import RecordWriter

STEPS_PER_EPOCH = 5


def plant(path: Path, **sets: Any) -> RunFolder:
    """Steps 1 to 7, a crash, and on from step 5, with other numbers, to step 12."""
    folder = RunFolder(path)
    folder.create()
    config = load_config(flags={k.replace("__", "."): v for k, v in sets.items()}).config
    folder.config.write_text(write_config(config))
    folder.inputs.parent.mkdir()
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3)).save(folder.inputs)
    write_attempt(folder, 0, 7)
    write_attempt(folder, 5, 12)
    folder.write_result(status="finished", step=12, metrics={"loss": 0.125, "accuracy": 0.75})
    return folder


def write_attempt(folder: RunFolder, begin: int, end: int) -> None:
    seed = len(folder.records(0).read_bytes()) if folder.records(0).exists() else 0
    draw = np.random.default_rng(seed)
    with RecordWriter(folder.records(0)) as records:
        records.write("start", step=begin, steps_per_epoch=STEPS_PER_EPOCH)
        for step in range(begin + 1, end + 1):
            write_step(records, step, draw)


def write_step(records: RecordWriter, step: int, draw: np.random.Generator) -> None:
    loss, accuracy, lr, seconds = draw.random(4).tolist()
    records.write(
        "step",
        step=step,
        epoch=step / STEPS_PER_EPOCH,
        samples=step * 8,
        lr=lr,
        rows=8,
        loss=loss,
        metrics={"accuracy": accuracy},
        step_s=seconds,
        phases={"forward": seconds},
        memory_bytes=1000,
    )
    if step % STEPS_PER_EPOCH == 0:
        epoch = step // STEPS_PER_EPOCH
        metrics = {"accuracy": accuracy, "by_class": {"cat": 1.0, "dog": 0.5}, "matrix": [[1, 2]]}
        records.write(
            "eval", step=step, epoch=epoch, loss=loss / 3, metrics=metrics, seconds=seconds
        )
        records.write(
            "epoch",
            epoch=epoch,
            train_loss=loss,
            train_metrics={"accuracy": accuracy},
            eval_loss=loss / 3,
            eval_metrics={"accuracy": accuracy},
            lr=lr,
            images_per_s=100.0,
            seconds=seconds,
        )


def recorded(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """What every tracker must have, by name: (step, value) from the records themselves."""
    records = read(folder.records(0))
    steps, evals = list(latest(records, "step")), list(latest(records, "eval"))
    return {
        "train/loss": [(r["step"], r["loss"]) for r in steps],
        "train/accuracy": [(r["step"], r["metrics"]["accuracy"]) for r in steps],
        "lr": [(r["step"], r["lr"]) for r in steps],
        "time/forward_s": [(r["step"], r["phases"]["forward"]) for r in steps],
        "eval/loss": [(r["step"], r["loss"]) for r in evals],
        "eval/by_class/dog": [(r["step"], r["metrics"]["by_class"]["dog"]) for r in evals],
        "epoch/train_loss": [
            (r["epoch"] * STEPS_PER_EPOCH, r["train_loss"]) for r in latest(records, "epoch")
        ],
    }
