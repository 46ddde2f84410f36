"""Learned and random policies: operations with a magnitude, picked at random for each image.

RandAugment (Cubuk et al. 2020), TrivialAugment (Müller and Hutter 2021), AugMix (Hendrycks et al. 2020). What an
operation does at a magnitude is torchvision's; which, how strongly and in which direction is drawn here, since
torchvision's own classes draw from the global generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from paceline.data.augment.base import Step, option
from paceline.data.draws import frozen_generator
from paceline.errors import UserError

Operation = Callable[[Tensor, float, Any], Tensor]  # of an image, a magnitude, an interpolation


def _functional() -> Any:
    from torchvision.transforms.v2 import functional

    return functional


def _affine(image: Tensor, mode: Any, **changed: Any) -> Tensor:
    still = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    moved: Tensor = _functional().affine(image, interpolation=mode, **(still | changed))
    return moved


def _shear(image: Tensor, mode: Any, x: float, y: float) -> Tensor:
    degrees = [math.degrees(math.atan(x)), math.degrees(math.atan(y))]
    return _affine(image, mode, shear=degrees, center=[0, 0])


OPERATIONS: dict[str, Operation] = {
    "identity": lambda image, m, mode: image,
    "shear-x": lambda image, m, mode: _shear(image, mode, m, 0.0),
    "shear-y": lambda image, m, mode: _shear(image, mode, 0.0, m),
    "translate-x": lambda image, m, mode: _affine(image, mode, translate=[int(m), 0]),
    "translate-y": lambda image, m, mode: _affine(image, mode, translate=[0, int(m)]),
    "rotate": lambda image, m, mode: _functional().rotate(image, m, interpolation=mode),
    "brightness": lambda image, m, mode: _functional().adjust_brightness(image, 1.0 + m),
    "color": lambda image, m, mode: _functional().adjust_saturation(image, 1.0 + m),
    "contrast": lambda image, m, mode: _functional().adjust_contrast(image, 1.0 + m),
    "sharpness": lambda image, m, mode: _functional().adjust_sharpness(image, 1.0 + m),
    "posterize": lambda image, m, mode: _functional().posterize(image, int(m)),
    "solarize": lambda image, m, mode: _functional().solarize(image, 255.0 * m),
    "auto-contrast": lambda image, m, mode: _functional().autocontrast(image),
    "equalize": lambda image, m, mode: _functional().equalize(image),
}
_COLOURS = ("brightness", "color", "contrast", "sharpness")
_WITHOUT = ("identity", "auto-contrast", "equalize")  # a magnitude
_ONE_WAY = ("posterize", "solarize", *_WITHOUT)  # never negated

# The largest magnitude of each operation: a number, or a share of the image's side. Posterize: (most, fewest) bits.
_RAND = {"shear": 0.3, "translate": 150 / 331, "rotate": 30.0, "colour": 0.9, "bits": (8, 4)}
_WIDE = {"shear": 0.99, "translate": 32.0, "rotate": 135.0, "colour": 0.99, "bits": (8, 2)}
_MIX = {"shear": 0.3, "translate": 1 / 3, "rotate": 30.0, "colour": 0.9, "bits": (4, 0)}


def magnitude(name: str, strongest: dict[str, Any], place: float, height: int, width: int) -> float:
    """The magnitude of an operation at `place` from 0 to 1 of its range."""
    kind = name.partition("-")[0] if name not in _COLOURS else "colour"
    if name in _WITHOUT:
        return 0.0
    if name == "posterize":
        most, fewest = strongest["bits"]
        return float(round(most - place * (most - fewest)))
    if name == "solarize":
        return 1.0 - place
    most = strongest[kind]
    if kind == "translate" and most < 1:
        most *= width if name == "translate-x" else height
    return float(place * most)


@dataclass(frozen=True)
class _Policy(Step):
    """What the policies share."""

    interpolation: Literal["nearest", "bilinear"] = option("nearest")
    needs_uint8: ClassVar[bool] = True
    needs_colour: ClassVar[bool] = True

    def apply(
        self,
        image: Tensor,
        names: list[str],
        strongest: dict[str, Any],
        place: float,
        *which: float,
    ) -> Tensor:
        """One operation. which: two draws, for the operation and for the sign of its magnitude."""
        from torchvision.transforms import InterpolationMode

        name = names[int(which[0] * len(names))]
        strength = magnitude(name, strongest, place, image.shape[-2], image.shape[-1])
        if name not in _ONE_WAY and which[1] < 0.5:
            strength = -strength
        return OPERATIONS[name](image, strength, InterpolationMode(self.interpolation))


@dataclass(frozen=True)
class RandAugment(_Policy):
    """`num_ops` random operations of one magnitude; as torchvision's RandAugment."""

    num_ops: int = option(2, at_least=1, at_most=10)
    magnitude: int = option(9, at_least=0)
    num_magnitude_bins: int = option(31, at_least=2)
    num_draws: ClassVar[int] = 20

    def one(self, image: Tensor, numbers: list[float]) -> Tensor:
        place = self.magnitude / (self.num_magnitude_bins - 1)
        for i in range(self.num_ops):
            image = self.apply(image, list(OPERATIONS), _RAND, place, *numbers[2 * i : 2 * i + 2])
        return image

    def check(self) -> None:
        if self.magnitude >= self.num_magnitude_bins:
            raise UserError(
                f"data.augment: rand-augment(magnitude={self.magnitude}) is too large",
                f"magnitudes are below num_magnitude_bins = {self.num_magnitude_bins}",
            )


@dataclass(frozen=True)
class TrivialAugment(_Policy):
    """One random operation of a random magnitude from a wide range; as torchvision's TrivialAugmentWide."""

    num_magnitude_bins: int = option(31, at_least=2)
    num_draws: ClassVar[int] = 3

    def one(self, image: Tensor, numbers: list[float]) -> Tensor:
        bins = self.num_magnitude_bins
        place = int(numbers[2] * bins) / (bins - 1)
        return self.apply(image, list(OPERATIONS), _WIDE, place, *numbers[:2])


@dataclass(frozen=True)
class AugMix(_Policy):
    """The image mixed with chains of weak operations on it; as torchvision's AugMix."""

    severity: int = option(3, at_least=1, at_most=10)
    mixture_width: int = option(3, at_least=1, at_most=10)
    chain_depth: int = option(-1, at_least=-1, at_most=10)
    alpha: float = option(1.0, at_least=1e-3)
    all_ops: bool = option(True)
    interpolation: Literal["nearest", "bilinear"] = option("bilinear")
    num_draws: ClassVar[int] = 1

    def one(self, image: Tensor, numbers: list[float]) -> Tensor:
        draws = frozen_generator(int(numbers[0] * 2**53))
        own, other = draws.dirichlet([self.alpha] * 2)
        shares = draws.dirichlet([self.alpha] * self.mixture_width) * other
        mix = image * np.float32(own)
        for share, chain in zip(shares, self._chains(image, draws), strict=True):
            mix += chain * np.float32(share)
        return mix.to(torch.uint8)

    def _chains(self, image: Tensor, draws: np.random.RandomState) -> Iterator[Tensor]:
        names = [n for n in OPERATIONS if n != "identity" and (self.all_ops or n not in _COLOURS)]
        for _ in range(self.mixture_width):
            depth = self.chain_depth if self.chain_depth > 0 else 1 + draws.randint(3)
            chain = image
            for _ in range(depth):
                place = draws.randint(self.severity) / 9
                chain = self.apply(chain, names, _MIX, place, *draws.random_sample(2))
            yield chain
