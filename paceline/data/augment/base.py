"""What an augmentation is, and what one step of it is: a pure function of an image and of numbers drawn for it."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.config import toml
from paceline.config.values import WrongValueError, accept, describe
from paceline.data.draws import Draws
from paceline.errors import UserError, nearest

Range = float | tuple[float, float]  # one number, or the lowest and the highest


class Augment(Protocol):
    """Changes images (n, C, H, W), uint8 or float; row i of the draws belongs to image i.

    before_stacking: called with one image at a time, since images still differ in size.
    modules: what a loader process imports for it; done once for all of them.
    """

    @property
    def before_stacking(self) -> bool: ...

    @property
    def modules(self) -> Sequence[str]: ...

    def __call__(self, images: np.ndarray, draws: Draws) -> np.ndarray: ...


class BadAugment(Exception):
    """A step failed on one image: `what` follows the sample's name in a sentence. row: of the images it was given."""

    def __init__(self, row: int, what: str, hint: str) -> None:
        super().__init__(row, what, hint)
        self.row, self.what, self.hint = row, what, hint


@dataclass(frozen=True)
class NoAugment:
    """Leaves images as they are."""

    before_stacking: ClassVar[bool] = False
    modules: ClassVar[Sequence[str]] = ()

    def __call__(self, images: np.ndarray, draws: Draws) -> np.ndarray:
        return images


@dataclass(frozen=True, kw_only=True)
class Context:
    """What steps know besides their options.

    size: of the square that the model sees, pixels. interpolation: of resizing. mean: of every channel, in pixel
    values: what normalization makes 0.
    """

    size: int = 0
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = (0.0,)


def option(
    default: Any, *, at_least: float | None = None, at_most: float | None = None, help: str = ""
) -> Any:
    """A field of a step that a user may set; a pair of bounds holds for both numbers of a pair."""
    return field(default=default, metadata={"at_least": at_least, "at_most": at_most, "help": help})


@dataclass(frozen=True)
class Step:
    """One step of a pipeline. Its fields after `context` are its options, under torchvision's names.

    A step takes images (n, C, H, W) and numbers (n, num_draws), uniform in [0, 1), and never writes into the images
    that it is given.
    sets_size: makes images of one size out of images of any.
    needs_uint8, needs_colour: refuses other images.
    """

    context: Context

    num_draws: ClassVar[int] = 0
    sets_size: ClassVar[bool] = False
    needs_uint8: ClassVar[bool] = False
    needs_colour: ClassVar[bool] = False

    def __call__(self, images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        out = [
            self.one(as_tensor(image), row)
            for image, row in zip(images, numbers.tolist(), strict=True)
        ]
        return out[0].numpy()[None] if len(out) == 1 else torch.stack(out).numpy()

    def one(self, image: Tensor, numbers: list[float]) -> Tensor:
        """One image (C, H, W)."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuses options that do not go together."""


def as_tensor(image: np.ndarray) -> Tensor:
    """The same memory where torch takes it, which it does not where that is read-only or runs backwards."""
    fits = image.flags.writeable and all(stride >= 0 for stride in image.strides)
    return torch.from_numpy(image if fits else image.copy())


def between(number: float, low: float, high: float) -> float:
    """A number of [0, 1) stretched over [low, high)."""
    return low + (high - low) * number


def pair(value: Range, *, around: float, lowest: float | None = None) -> tuple[float, float]:
    """The lowest and the highest that a range means: itself, or `around` minus and plus one number."""
    if isinstance(value, tuple):
        return value
    low = around - value
    return (low if lowest is None else max(low, lowest)), around + value


def options_of(cls: type[Step]) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    """The options of a step: field and kind by name."""
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    return {f.name: (f, hints[f.name]) for f in fields if f.name != "context"}


def make_step(name: str, cls: type[Step], options: Mapping[str, Any], context: Context) -> Step:
    """The step with these options, each checked."""
    known = options_of(cls)
    for key in options:
        if key not in known:
            hint = nearest(key, list(known)) if known else "write its name alone"
            raise UserError(f"data.augment: {name} has no option {key!r}", hint)
    values = {key: _checked(name, key, value, *known[key]) for key, value in options.items()}
    step = cls(context, **values)
    step.check()
    return step


def _checked(name: str, key: str, value: Any, f: dataclasses.Field[Any], kind: Any) -> Any:
    what = f"data.augment: {name}({key}={toml.brief(value)})"
    try:
        accepted = _accepted(kind, value)
    except WrongValueError as error:
        raise UserError(f"{what} {error.problem}", error.hint or f"give {describe(kind)}") from None
    numbers = accepted if isinstance(accepted, tuple) else (accepted,)
    low, high = f.metadata["at_least"], f.metadata["at_most"]
    if low is not None and min(numbers) < low:
        raise UserError(f"{what} is too small", f"give at least {low:g}")
    if high is not None and max(numbers) > high:
        raise UserError(f"{what} is too large", f"give at most {high:g}")
    if len(numbers) == 2 and numbers[0] > numbers[1]:
        raise UserError(f"{what} runs backwards", "give the lower number first")
    return accepted


def _accepted(kind: Any, value: Any) -> Any:
    if kind == Range:
        return accept(tuple[float, float] if isinstance(value, (list, tuple)) else float, value)
    if kind == float | str:
        return accept(str if isinstance(value, str) else float, value)
    return accept(kind, value)


def located(function: Callable[..., Any]) -> str:
    """A callable's name for messages."""
    return getattr(function, "__qualname__", type(function).__qualname__)
