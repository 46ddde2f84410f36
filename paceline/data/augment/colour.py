"""Steps that change pixels and leave them where they are: torchvision's operations, with parameters drawn here."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paceline.data.augment.base import Range, Step, between, option, pair
from paceline.errors import UserError

_ORDERS = list(itertools.permutations(range(4)))


@dataclass(frozen=True)
class ColorJitter(Step):
    """Brightness, contrast, saturation and hue by random factors, in random order; as torchvision's ColorJitter."""

    brightness: Range = option(0.0, at_least=0)
    contrast: Range = option(0.0, at_least=0)
    saturation: Range = option(0.0, at_least=0)
    hue: Range = option(0.0, at_least=-0.5, at_most=0.5)
    p: float = option(1.0, at_least=0, at_most=1)
    num_draws: ClassVar[int] = 6
    needs_uint8: ClassVar[bool] = True
    needs_colour: ClassVar[bool] = True

    def one(self, image: Tensor, numbers: list[float]) -> Tensor:
        from torchvision.transforms.v2 import functional

        *factors, order, whether = numbers
        if whether >= self.p:
            return image
        changes = (
            (functional.adjust_brightness, pair(self.brightness, around=1.0, lowest=0.0), 1.0),
            (functional.adjust_contrast, pair(self.contrast, around=1.0, lowest=0.0), 1.0),
            (functional.adjust_saturation, pair(self.saturation, around=1.0, lowest=0.0), 1.0),
            (functional.adjust_hue, pair(self.hue, around=0.0), 0.0),
        )
        for which in _ORDERS[int(order * len(_ORDERS))]:
            change, (low, high), nothing = changes[which]
            if (low, high) != (nothing, nothing):
                image = change(image, between(factors[which], low, high))
        return image

    def check(self) -> None:
        if all(v == 0.0 for v in (self.brightness, self.contrast, self.saturation, self.hue)):
            raise UserError(
                "data.augment: color-jitter changes nothing",
                "give it brightness, contrast, saturation or hue, for example brightness=0.4",
            )


@dataclass(frozen=True)
class Grayscale(Step):
    """Grey with probability p, with as many channels as before; as torchvision's RandomGrayscale."""

    p: float = option(0.1, at_least=0, at_most=1)
    num_draws: ClassVar[int] = 1
    needs_colour: ClassVar[bool] = True

    def one(self, image: Tensor, numbers: list[float]) -> Tensor:
        from torchvision.transforms.v2 import functional

        if numbers[0] >= self.p:
            return image
        return functional.rgb_to_grayscale(image, num_output_channels=image.shape[0])


@dataclass(frozen=True)
class GaussianBlur(Step):
    """Blurred with probability p, by a random sigma in pixels; as torchvision's GaussianBlur.

    kernel_size: odd; 0: wide enough for the largest sigma.
    """

    kernel_size: int = option(0, at_least=0)
    sigma: tuple[float, float] = option((0.1, 2.0), at_least=1e-3)
    p: float = option(0.5, at_least=0, at_most=1)
    num_draws: ClassVar[int] = 2

    def one(self, image: Tensor, numbers: list[float]) -> Tensor:
        from torchvision.transforms.v2 import functional

        if numbers[0] >= self.p:
            return image
        largest = 2 * ((min(image.shape[-2:]) - 1) // 2) + 1  # a wider kernel than the image fails
        kernel = min(self.kernel_size or 2 * math.ceil(2 * self.sigma[1]) + 1, largest)
        return functional.gaussian_blur(image, [kernel, kernel], [between(numbers[1], *self.sigma)])

    def check(self) -> None:
        if self.kernel_size and self.kernel_size % 2 == 0:
            raise UserError(
                f"data.augment: gaussian-blur(kernel_size={self.kernel_size}) is even",
                f"give an odd number, such as {self.kernel_size + 1}",
            )


@dataclass(frozen=True)
class Erase(Step):
    """A random rectangle blotted out with probability p; as torchvision's RandomErasing.

    value: a pixel value; "mean": what normalization makes 0, as erasing after it does; "random": noise.
    """

    p: float = option(0.25, at_least=0, at_most=1)
    scale: tuple[float, float] = option((0.02, 0.33), at_least=1e-6, at_most=1)
    ratio: tuple[float, float] = option((0.3, 3.3), at_least=1e-3)
    value: float | str = option("mean")
    num_draws: ClassVar[int] = 42

    def one(self, image: Tensor, numbers: list[float]) -> Tensor:
        from torchvision.transforms.v2 import functional

        if numbers[0] >= self.p:
            return image
        box = self._box(image.shape[-2], image.shape[-1], numbers[2:])
        if box is None:
            return image
        return functional.erase(image, *box, self._value(image, box, numbers[1]))

    def _box(self, height: int, width: int, numbers: list[float]) -> tuple[int, ...] | None:
        """(top, left, height, width), smaller than the image; after ten tries nothing."""
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for i in range(0, 40, 4):
            area = height * width * between(numbers[i], *self.scale)
            aspect = math.exp(low + (high - low) * numbers[i + 1])
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < h < height and 0 < w < width:
                top, left = numbers[i + 2], numbers[i + 3]
                return int(top * (height - h + 1)), int(left * (width - w + 1)), h, w
        return None

    def _value(self, image: Tensor, box: tuple[int, ...], number: float) -> Tensor:
        if self.value == "random":
            generator = torch.Generator().manual_seed(int(number * 2**53))
            shape = (image.shape[0], *box[2:])
            if image.is_floating_point():
                return torch.randn(shape, generator=generator, dtype=image.dtype)
            return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        values = self.context.mean if self.value == "mean" else (float(self.value),)
        if self.value == "mean" and image.is_floating_point():
            values = (0.0,)  # such images are taken as normalized
        colour = torch.tensor(values, dtype=torch.float64).view(-1, 1, 1)
        return (colour if image.is_floating_point() else colour.round()).to(image.dtype)

    def check(self) -> None:
        if isinstance(self.value, str) and self.value not in ("mean", "random"):
            raise UserError(
                f"data.augment: erase(value={self.value!r}) is no value",
                'give a number, "mean" or "random"',
            )
