"""Pictures that somebody else's data set decodes, brought to RGB and one size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.data.decode import View
from paceline.data.sources.base import BadSample, Normalization
from paceline.data.sources.functions import UNREADABLE, describe
from paceline.data.sources.viewed import ViewedSource


class Pictures(ViewedSource):
    """Items (picture, target) of a data set, or of some of its rows.

    item: from what the data set returns to (picture, target); the picture is Pillow's.
    targets: of every item, where they are known; they stand in for what the item holds.
    view: see ViewedSource.
    grey: pictures keep one channel.
    """

    def __init__(
        self,
        dataset: Any,
        targets: np.ndarray | None,
        view: View | None,
        *,
        name: str,
        num_classes: int = 0,
        rows: np.ndarray | None = None,
        item: Callable[[Any], tuple[Any, Any]] = tuple,
        grey: bool = False,
    ) -> None:
        super().__init__(view)
        self.name = name
        self.num_classes = num_classes
        self._dataset = dataset
        self._item = item
        self._grey = grey
        if grey:
            self.normalization = Normalization(mean=(0.5,), std=(0.25,))
        self._rows = np.arange(len(dataset)) if rows is None else rows
        self._targets = targets
        if targets is not None and targets.ndim == 1 and targets.dtype.kind == "i":
            self.labels = targets[self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def load_whole(self, index: int) -> dict[str, Any]:
        try:
            row = int(self._rows[index])
            picture, target = self._item(self._dataset[row])
            image = tensor_of(picture, "L" if self._grey else "RGB")
        except UNREADABLE as e:
            raise BadSample(index, self.name, describe(e)) from e
        known = self._targets
        return {"input": image, "target": target if known is None else known[row]}


def tensor_of(picture: Any, mode: str) -> Tensor:
    """(C, H, W) uint8 of a Pillow picture. mode: RGB or L, as Pillow calls them."""
    pixels = np.array(picture.convert(mode))
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
