"""Pictures that somebody else's data set decodes, brought to RGB and one size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.data.decode import center_square
from paceline.data.sources.base import IMAGENET, BadSample, Source
from paceline.data.sources.functions import UNREADABLE, describe


class Pictures(Source):
    """Items (picture, target) of a data set, or of some of its rows.

    item: from what the data set returns to (picture, target); the picture is Pillow's or an array (H, W[, C]).
    targets: of every item, where they are known. image_size: of the central square; 0: whole pictures.
    """

    normalization = IMAGENET
    augment = "resized-crop-flip"
    draws_globally = False

    def __init__(
        self,
        dataset: Any,
        targets: np.ndarray | None,
        image_size: int,
        *,
        name: str,
        num_classes: int = 0,
        rows: np.ndarray | None = None,
        item: Callable[[Any], tuple[Any, Any]] = tuple,
    ) -> None:
        self.name = name
        self.num_classes = num_classes
        self._dataset = dataset
        self._image_size = image_size
        self._item = item
        self._rows = np.arange(len(dataset)) if rows is None else rows
        if targets is not None and targets.ndim == 1 and targets.dtype.kind == "i":
            self.labels = targets[self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, index: int) -> dict[str, Any]:
        try:
            picture, target = self._item(self._dataset[int(self._rows[index])])
            image = rgb(picture)
        except UNREADABLE as e:
            raise BadSample(index, self.name, describe(e)) from e
        if self._image_size:
            image = center_square(image, self._image_size)
        return {"input": image, "target": target}


def rgb(picture: Any) -> Tensor:
    """(3, H, W) uint8 of a Pillow picture, or of an array (H, W), (H, W, C)."""
    if hasattr(picture, "convert"):
        pixels = np.array(picture.convert("RGB"))
    else:
        pixels = np.asarray(picture)
        if pixels.dtype != np.uint8:
            raise ValueError(f"the picture is an array of {pixels.dtype}, and not of uint8")
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[:, :, :3]
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
