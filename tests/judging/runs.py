"""A finished run on a small image folder, for tests of what is done with it afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from paceline.config.load import load_config
from paceline.config.write import write_config
from paceline.loop.setup import Objects, resolve
from paceline.loop.stopping import StopRequest
from paceline.loop.train import run
from paceline.records.folder import RunFolder

CLASSES = ("=sum(A1)", "cat", "dog")
SMALL = {
    "device": "cpu",
    "parallel.strategy": "single",
    "precision.dtype": "fp64",
    "model.width": 8,
    "train.epochs": 2,
    "train.global_batch": 8,
    "optim.base_lr": 1.0,
    "data.workers": 0,
    "checkpoint.background": False,
}


def picture(path: Path, seed: int, size: tuple[int, int] = (20, 24)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, "PNG")


def pictures(folder: Path, each: int = 5) -> None:
    for split, first in (("train", 0), ("val", 500)):
        for label, name in enumerate(CLASSES):
            for number in range(each):
                picture(folder / split / name / f"{number}.png", first + 100 * label + number)


def train_here(folder: Path, flags: dict[str, Any], objects: Objects | None = None) -> RunFolder:
    """A run in this process, with all that the launcher writes besides."""
    config = resolve(load_config(flags={**SMALL, **flags}).config, 1)
    run_folder = RunFolder(folder)
    folder.mkdir(parents=True)
    run_folder.create()
    run_folder.config.write_text(write_config(config))
    run(run_folder, config, stop=StopRequest(), objects=objects)
    return run_folder


def image_run(folder: Path) -> RunFolder:
    pictures(folder / "photos")
    flags = {
        "data.source": f"imagefolder:{folder / 'photos'}",
        "data.image_size": 16,
        "optim.ema_decay": 0.9,
        "train.metrics": ["accuracy", "f1", "auc"],
        "checkpoint.keep_last": 3,
    }
    return train_here(folder / "run", flags)
