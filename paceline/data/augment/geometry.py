"""Steps that move, crop, mirror, turn and resize images; in any dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from paceline.data.augment.base import Range, Step, as_tensor, between, option, pair
from paceline.data.decode import resize, resize_shorter
from paceline.errors import UserError

Interpolation = Literal["auto", "nearest", "bilinear", "bicubic"]


@dataclass(frozen=True)
class Shift(Step):
    """Moves an image by up to `pixels` in each direction (0: an eighth of its side, at least one); bares 0."""

    pixels: int = option(0, at_least=0)
    num_draws: ClassVar[int] = 2

    def __call__(self, images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        n, channels, height, width = images.shape
        most = self.pixels or max(1, width // 8)
        padded = np.zeros((n, channels, height + 2 * most, width + 2 * most), images.dtype)
        padded[:, :, most : most + height, most : most + width] = images
        windows = sliding_window_view(padded, (height, width), axis=(2, 3))
        down, right = (numbers * (2 * most + 1)).astype(np.int64).T
        return windows[np.arange(n), :, down, right]


@dataclass(frozen=True)
class Flip(Step):
    """Mirrors an image with probability p: left and right, or top and bottom."""

    p: float = option(0.5, at_least=0, at_most=1)
    direction: Literal["horizontal", "vertical"] = option("horizontal")
    num_draws: ClassVar[int] = 1

    def __call__(self, images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        chosen = numbers[:, 0] < self.p
        if not chosen.any():
            return images
        mirrored = images.copy()
        axis = -1 if self.direction == "horizontal" else -2
        mirrored[chosen] = np.flip(images[chosen], axis)
        return mirrored


@dataclass(frozen=True)
class ResizedCrop(Step):
    """A crop of random area and aspect, resized to the model's size; as torchvision's RandomResizedCrop."""

    scale: tuple[float, float] = option((0.08, 1.0), at_least=1e-6, at_most=1)
    ratio: tuple[float, float] = option((3 / 4, 4 / 3), at_least=1e-3)
    interpolation: Interpolation = option("auto")
    num_draws: ClassVar[int] = 40
    sets_size: ClassVar[bool] = True

    def one(self, image: Tensor, numbers: list[float]) -> Tensor:
        top, left, height, width = random_crop(
            image.shape[-2], image.shape[-1], np.reshape(numbers, (10, 4)), self.scale, self.ratio
        )
        crop = image[:, top : top + height, left : left + width]
        size = self.context.size
        return resize(crop, size, size, _resizing(self)).contiguous()


def random_crop(
    height: int,
    width: int,
    numbers: np.ndarray,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random crop: ten tries, then the largest central crop of an allowed aspect.

    numbers: (tries, 4), uniform in [0, 1).
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for area_draw, aspect_draw, top_draw, left_draw in numbers.tolist():
        area = height * width * between(area_draw, *scale)
        aspect = math.exp(low + (high - low) * aspect_draw)
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(top_draw * (height - h + 1)), int(left_draw * (width - w + 1)), h, w
    w = min(width, max(1, round(height * ratio[1])))
    h = min(height, max(1, round(width / ratio[0])))
    return (height - h) // 2, (width - w) // 2, h, w


@dataclass(frozen=True)
class Resize(Step):
    """The shorter side to `shorter` pixels (0: 8/7 of the model's size), the aspect kept; follow it with a crop."""

    shorter: int = option(0, at_least=0)
    interpolation: Interpolation = option("auto")
    sets_size: ClassVar[bool] = True

    def one(self, image: Tensor, numbers: list[float]) -> Tensor:
        shorter = self.shorter or round(self.context.size * 8 / 7)
        return resize_shorter(image, shorter, _resizing(self)).contiguous()


@dataclass(frozen=True)
class Crop(Step):
    """A random window of the model's size, after a border of `padding` pixels; as torchvision's RandomCrop."""

    padding: int = option(0, at_least=0)
    padding_mode: Literal["constant", "reflect", "edge"] = option("constant")
    num_draws: ClassVar[int] = 2
    sets_size: ClassVar[bool] = True

    def one(self, image: Tensor, numbers: list[float]) -> Tensor:
        size = self.context.size
        border = ((0, 0), (self.padding, self.padding), (self.padding, self.padding))
        padded = np.pad(image.numpy(), border, mode=self.padding_mode) if self.padding else image
        height, width = padded.shape[-2:]
        if height < size or width < size:
            raise UserError(
                f"data.augment: crop needs images of at least {size} x {size} pixels, and finds one "
                f"of {height} x {width}",
                'put "resize" before it, or give crop a padding',
            )
        top = int(numbers[0] * (height - size + 1))
        left = int(numbers[1] * (width - size + 1))
        window = padded[:, top : top + size, left : left + size]
        return as_tensor(np.ascontiguousarray(window))


@dataclass(frozen=True)
class Rotation(Step):
    """Turned by an angle within ± degrees, or within a pair; as torchvision's RandomRotation."""

    degrees: Range = option(15.0, at_least=-360, at_most=360)
    interpolation: Interpolation = option("nearest")
    fill: float = option(0.0)
    num_draws: ClassVar[int] = 1

    def one(self, image: Tensor, numbers: list[float]) -> Tensor:
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.v2 import functional

        angle = between(numbers[0], *pair(self.degrees, around=0.0))
        mode = InterpolationMode(_resizing(self))
        return functional.rotate(image, angle, interpolation=mode, fill=self.fill)

    def check(self) -> None:
        if self.interpolation == "bicubic":
            raise UserError(
                "data.augment: rotation cannot be bicubic", "choose nearest or bilinear"
            )


def _resizing(step: ResizedCrop | Resize | Rotation) -> str:
    return step.context.interpolation if step.interpolation == "auto" else step.interpolation
