"""Augmentations of training images, drawn for each sample by itself; what is drawn never depends on its batch.

A new one is a class here and a line in `AUGMENTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from paceline.data.decode import resize
from paceline.data.draws import Draws

_OFFSET, _FLIP, _CROP = 1, 2, 3  # streams of draws


class Augment(Protocol):
    """Changes images (n, C, H, W), uint8 or float; row i of the draws belongs to image i.

    before_stacking: called with one image at a time, since images still differ in size.
    """

    @property
    def before_stacking(self) -> bool: ...

    def __call__(self, images: np.ndarray, draws: Draws) -> np.ndarray: ...


@dataclass(frozen=True)
class NoAugment:
    """Leaves images as they are."""

    before_stacking: ClassVar[bool] = False

    def __call__(self, images: np.ndarray, draws: Draws) -> np.ndarray:
        return images


@dataclass(frozen=True)
class Shift:
    """Moves an image by up to an eighth of its side, at least one pixel, in each direction; what is bared is 0."""

    before_stacking: ClassVar[bool] = False

    def __call__(self, images: np.ndarray, draws: Draws) -> np.ndarray:
        return _shifted(images, max(1, images.shape[-1] // 8), draws)


@dataclass(frozen=True)
class CropFlip:
    """CIFAR's usual: a border of 4 pixels (for 32; an eighth of the side), a random crop of it, a random mirror."""

    before_stacking: ClassVar[bool] = False

    def __call__(self, images: np.ndarray, draws: Draws) -> np.ndarray:
        images = _shifted(images, max(1, images.shape[-1] // 8), draws)
        flip = draws.integers(_FLIP, 2, 1)[:, 0] == 1
        images[flip] = images[flip, ..., ::-1]
        return images


def _shifted(images: np.ndarray, most: int, draws: Draws) -> np.ndarray:
    """Windows at random places of the images with a zero border of `most` pixels."""
    n, channels, height, width = images.shape
    padded = np.zeros((n, channels, height + 2 * most, width + 2 * most), images.dtype)
    padded[:, :, most : most + height, most : most + width] = images
    windows = sliding_window_view(padded, (height, width), axis=(2, 3))
    down, right = draws.integers(_OFFSET, 2 * most + 1, 2).T
    return windows[np.arange(n), :, down, right]


@dataclass(frozen=True)
class ResizedCropFlip:
    """ImageNet's usual: a crop of random area and aspect, resized to `size`, mirrored half the time.

    Parameters are those of torchvision's RandomResizedCrop: area 8% to 100%, aspect 3/4 to 4/3, ten tries, then the
    largest central crop of an allowed aspect.
    """

    size: int
    before_stacking: ClassVar[bool] = True

    def __call__(self, images: np.ndarray, draws: Draws) -> np.ndarray:
        numbers = draws.uniform(_CROP, 40).reshape(len(draws), 10, 4)
        flips = draws.integers(_FLIP, 2, 1)[:, 0]
        rows = [self._one(*row) for row in zip(images, numbers, flips, strict=True)]
        return np.stack(rows) if len(rows) > 1 else rows[0][None]

    def _one(self, image: np.ndarray, numbers: np.ndarray, flip: int) -> np.ndarray:
        top, left, height, width = random_crop(image.shape[-2], image.shape[-1], numbers)
        crop = torch.from_numpy(image[:, top : top + height, left : left + width])
        small = resize(crop, self.size, self.size)
        return (small.flip(-1) if flip else small).contiguous().numpy()


def random_crop(height: int, width: int, numbers: np.ndarray) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random crop. numbers: (tries, 4), uniform in [0, 1)."""
    low, high = math.log(3 / 4), math.log(4 / 3)
    for area_draw, aspect_draw, top_draw, left_draw in numbers.tolist():
        area = height * width * (0.08 + 0.92 * area_draw)
        aspect = math.exp(low + (high - low) * aspect_draw)
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(top_draw * (height - h + 1)), int(left_draw * (width - w + 1)), h, w
    w = min(width, max(1, round(height * 4 / 3)))
    h = min(height, max(1, round(width * 4 / 3)))
    return (height - h) // 2, (width - w) // 2, h, w


AUGMENTS: dict[str, tuple[str, Callable[[int], Augment]]] = {
    "none": ("images as they are", lambda size: NoAugment()),
    "shift": ("moved by up to an eighth of the side", lambda size: Shift()),
    "crop-flip": (
        "moved by up to an eighth of the side, mirrored half the time",
        lambda size: CropFlip(),
    ),
    "resized-crop-flip": (
        "a crop of random area and aspect, mirrored half the time",
        ResizedCropFlip,
    ),
}


def build_augment(name: str, image_size: int) -> Augment:
    """The augmentation of that name, for images that end as squares of `image_size` pixels."""
    return AUGMENTS[name][1](image_size)
