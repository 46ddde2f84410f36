"""The UCI handwritten digits that scikit-learn ships: 1,797 images of 8 x 8, read without importing scikit-learn."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch

from paceline.data.decode import resize
from paceline.data.sources.base import ArraySource, Normalization, stratified_split
from paceline.errors import UserError

SIDE = 8
HELD_OUT = 0.2


class Digits(ArraySource):
    """One split. Pixels are 0 … 16; mean and std are those of the training split."""

    normalization = Normalization(scale=1 / 16, mean=(0.305,), std=(0.376,))
    augment = "shift"
    class_names = tuple("0123456789")


def open_digits(image_size: int) -> tuple[Digits, Digits]:
    """(train, test): 1,437 and 360 images, a fifth of every class held out, whatever the seed.

    image_size: 0 for the images as they are, else they are resized once.
    """
    images, labels = _read()
    if image_size not in (0, SIDE):
        images = resize(torch.from_numpy(images), image_size, image_size).numpy()
    train, test = (
        Digits({"input": images[rows], "target": labels[rows]}, num_classes=10, name="digits")
        for rows in stratified_split(labels, HELD_OUT)
    )
    return train, test


def _read() -> tuple[np.ndarray, np.ndarray]:
    """(1797, 1, 8, 8) uint8 and (1797,) int64."""
    with gzip.open(_file(), "rt") as lines:
        table = np.array([line.split(",") for line in lines], dtype=np.float64)
    return table[:, :-1].astype(np.uint8).reshape(-1, 1, SIDE, SIDE), table[:, -1].astype(np.int64)


def _file() -> Path:
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return file
    raise UserError(
        'data.source = "digits" reads a file that scikit-learn ships, and it is not installed',
        "pip install scikit-learn, or choose data.source = synthetic or imagefolder:PATH",
    )
