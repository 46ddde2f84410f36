"""Image files by path: an index held in arrays, and a source that decodes one file at a time.

File names are bytes from the disk: never decoded but for display, never handed to a shell.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.config.schema import DataConfig
from paceline.data.augment import takes_whole_images
from paceline.data.decode import UnreadableImage, View, read_image
from paceline.data.sources.base import BadSample
from paceline.data.sources.viewed import ViewedSource
from paceline.errors import UserError


@dataclass(frozen=True)
class Index:
    """Which files there are, as arrays: a Python list would be copied into every loader process, bit by bit.

    names: the paths below `root`, end to end, uint8; name i is names[offsets[i]:offsets[i + 1]].
    labels: int64. classes: names of the classes, in the order of their labels. ignored: files that are no images.
    """

    root: bytes
    names: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray
    classes: tuple[bytes, ...]
    ignored: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def path(self, row: int) -> bytes:
        name = self.names[self.offsets[row] : self.offsets[row + 1]].tobytes()
        return os.path.join(self.root, name)


def index_of(
    paths: Sequence[str | os.PathLike[str]],
    labels: np.ndarray,
    classes: Sequence[str] = (),
    root: str = "",
) -> Index:
    """An index of files that somebody else has listed. labels: of any kind, a row a file."""
    names = [os.fsencode(path) for path in paths]
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    return Index(
        root=os.fsencode(root),
        names=np.frombuffer(b"".join(names), np.uint8),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        labels=np.asarray(labels),
        classes=tuple(os.fsencode(name) for name in classes),
    )


class ImageFiles(ViewedSource):
    """The images of an index, or of some of its rows. view: see ViewedSource."""

    modules = ("torchvision.io",)

    def __init__(
        self, index: Index, view: View | None, rows: np.ndarray | None = None, *, name: str
    ) -> None:
        super().__init__(view)
        self.name = name
        self.index = index
        self._rows = np.arange(len(index)) if rows is None else rows
        self._targets = index.labels[self._rows]
        self.num_classes = len(index.classes)
        self.class_names = tuple(printable(name) for name in index.classes)
        if self._targets.ndim == 1 and self._targets.dtype.kind == "i":
            self.labels = self._targets

    def __len__(self) -> int:
        return len(self._rows)

    def path(self, index: int) -> bytes:
        return self.index.path(int(self._rows[index]))

    def load_whole(self, index: int) -> dict[str, Any]:
        path = self.path(index)
        try:
            image = read_image(path)
        except UnreadableImage as e:
            raise BadSample(index, printable(path), str(e)) from e
        return {"input": image, "target": self._targets[index]}

    def digest(self) -> str:
        parts = (self.index.names, self.index.offsets, self._rows, self._targets)
        digest = hashlib.blake2b(super().digest().encode(), digest_size=8)
        for part in parts:
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()


def printable(name: bytes) -> str:
    """A file name for people: control characters and bytes that are no UTF-8 are written as escapes."""
    text = name.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def check_image_size(source: str, config: DataConfig) -> None:
    if config.image_size == 0:
        raise UserError(
            f"{source} has images of many sizes, and data.image_size is not set",
            "set data.image_size, for example 224",
        )


def whole_images(config: DataConfig) -> bool:
    """Whether training images are left whole, because augmentation crops them."""
    return takes_whole_images(config.augment, ImageFiles.augment)


def view_of(config: DataConfig, size: int = 0) -> View:
    """How whole images become squares for evaluation, and for training where augmentation does not crop.

    size: of the square where `data.image_size` says none.
    """
    size = config.image_size or size
    if 0 < config.eval_resize < size:
        raise UserError(
            f"data.eval_resize = {config.eval_resize} is smaller than data.image_size = {size}, "
            "which is cropped out of it",
            f"give at least {size}, or 0 for 8/7 of it",
        )
    return View(size, config.eval_resize, config.interpolation)
