"""Reads MNIST's file format, packed or not, where torchvision's own layout does not lie.

The format (yann.lecun.com/exdb/mnist): two zero bytes, the type (8: uint8), the number of dimensions, each
dimension as a big-endian 32-bit integer, then the values.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from paceline.errors import UserError

CLASSES = ("MNIST", "FashionMNIST", "KMNIST")  # torchvision's, of which files have these names
_PREFIX = {"train": "train", "test": "t10k"}


def exists(folder: Path) -> bool:
    """Whether all four files lie in the folder."""
    return all(
        _file(folder, prefix, what) is not None
        for prefix in _PREFIX.values()
        for what in ("images-idx3", "labels-idx1")
    )


def read(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """(n, 1, H, W) uint8 and (n,) int64."""
    images, labels = (
        _read(_file(folder, _PREFIX[split], what)) for what in ("images-idx3", "labels-idx1")
    )
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise UserError(
            f"the files of {folder} hold images of {images.shape} and labels of {labels.shape}",
            "get the files anew",
        )
    return images[:, None], labels.astype(np.int64)


def _file(folder: Path, prefix: str, what: str) -> Path | None:
    names = (f"{prefix}-{what}-ubyte", f"{prefix}-{what}-ubyte.gz")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read(path: Path | None) -> np.ndarray:
    assert path is not None, "exists() was asked before"
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if data[:3] != b"\0\0\x08":
            raise ValueError("it does not begin as an IDX file of bytes")
        num_dims = data[3]
        start = 4 + 4 * num_dims
        shape = np.frombuffer(data[4:start], ">u4").astype(np.int64)
        if len(data) - start != shape.prod():
            raise ValueError(f"it holds {len(data) - start:,} values and not {shape.prod():,}")
        return np.frombuffer(bytearray(data), np.uint8, offset=start).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}", "get the file anew") from error
