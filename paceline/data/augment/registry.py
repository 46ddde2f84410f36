"""The names of steps and presets, and a pipeline of steps made from what a user wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.data.augment.base import (
    Augment,
    BadAugment,
    Context,
    NoAugment,
    Step,
    make_step,
)
from paceline.data.augment.colour import ColorJitter, Erase, GaussianBlur, Grayscale
from paceline.data.augment.functions import Function, make_function
from paceline.data.augment.geometry import Crop, Flip, Resize, ResizedCrop, Rotation, Shift
from paceline.data.augment.notation import Written, read_steps
from paceline.data.augment.policies import AugMix, RandAugment, TrivialAugment
from paceline.data.draws import Draws
from paceline.data.importing import import_function
from paceline.errors import UserError, nearest

STEPS: dict[str, type[Step]] = {
    "shift": Shift,
    "resize": Resize,
    "crop": Crop,
    "resized-crop": ResizedCrop,
    "flip": Flip,
    "rotation": Rotation,
    "color-jitter": ColorJitter,
    "grayscale": Grayscale,
    "gaussian-blur": GaussianBlur,
    "rand-augment": RandAugment,
    "trivial-augment": TrivialAugment,
    "aug-mix": AugMix,
    "erase": Erase,
}
PRESETS: dict[str, tuple[str, ...]] = {
    "none": (),
    "crop-flip": ("shift", "flip"),  # CIFAR's usual: a border of 4 pixels for 32
    "resized-crop-flip": ("resized-crop", "flip"),  # ImageNet's usual
}
_STREAM = 1  # of draws
_IN_TORCHVISION = "torchvision.transforms.v2.functional"


@dataclass(frozen=True)
class Pipeline:
    """Steps one after another, each with its own part of the numbers drawn for an image.

    size: of the square that images must end as, pixels; 0: they keep their own size.
    """

    steps: tuple[Step, ...]
    size: int

    @property
    def before_stacking(self) -> bool:
        """Where a step makes one size of many, images come one by one."""
        return any(step.sets_size for step in self.steps)

    @property
    def modules(self) -> Sequence[str]:
        ours = (Shift, Resize, ResizedCrop, Crop, Flip, Function)
        return [] if all(isinstance(step, ours) for step in self.steps) else [_IN_TORCHVISION]

    def __call__(self, images: np.ndarray, draws: Draws) -> np.ndarray:
        numbers = draws.uniform(_STREAM, sum(step.num_draws for step in self.steps))
        wanted = (self.size, self.size) if self.size else images.shape[-2:]
        used = 0
        for step in self.steps:
            _check_kind(step, images)
            images = step(images, numbers[:, used : used + step.num_draws])
            used += step.num_draws
        if images.shape[-2:] != wanted:
            raise BadAugment(
                0,
                f"the pipeline ends with {images.shape[-2]} x {images.shape[-1]} pixels, and the "
                f"model is to see {wanted[0]} x {wanted[1]}",
                "end it with resized-crop or crop, or set data.image_size to what it gives",
            )
        return images


def build_augment(written: Any, context: Context | int = 0, *, auto: str = "none") -> Augment:
    """The augmentation of a setting's value, or of what Python gave. auto: what that word means.

    context: what the steps know; a number alone is the size that images end with.
    """
    if isinstance(context, int):
        context = Context(size=context)
    steps = tuple(_make(step, context) for step in _expanded(written, auto))
    if not steps:
        return NoAugment()
    _check_size(steps, context)
    return Pipeline(steps, context.size)


def _check_size(steps: Sequence[Step], context: Context) -> None:
    for step in steps:
        if isinstance(step, (ResizedCrop, Resize, Crop)) and context.size == 0:
            raise UserError(
                f"data.augment: {_name(step)} needs to know the size that the model sees",
                "set data.image_size, for example 224",
            )


def check_augment(written: Any) -> None:
    """Refuses unknown names and options, before anything is started. Functions are imported later, in the ranks."""
    for step in _expanded(written, "none"):
        if not step.is_function:
            _make(step, Context())


def takes_whole_images(written: Any, auto: str) -> bool:
    """Whether the pipeline wants images as they are in their files, of many sizes: it crops them, or a function may."""
    steps = _expanded(written, auto)
    return any(step.is_function or STEPS[step.name].sets_size for step in steps)


def _expanded(written: Any, auto: str) -> list[Written]:
    """The steps, with presets and `auto` written out."""
    steps: list[Written] = []
    for step in read_steps(written):
        if step.is_function or step.name in STEPS:
            steps.append(step)
            continue
        if step.name != "auto" and step.name not in PRESETS:
            raise UserError(
                f"data.augment = {step.name!r} is no augmentation",
                nearest(step.name, ["auto", *PRESETS, *STEPS]),
            )
        if step.options:
            raise UserError(
                f"data.augment: {step.name} takes no options",
                f"it stands for {', '.join(PRESETS.get(step.name, ()))}; give them to these",
            )
        if step.name == "auto":
            steps += _expanded(auto, "none")
        else:
            steps += read_steps(list(PRESETS[step.name]))
    return steps


def _make(step: Written, context: Context) -> Step:
    if not step.is_function:
        return make_step(step.name, STEPS[step.name], step.options, context)
    call = step.call or import_function(step.name, "data.augment")
    return make_function(step.name, call, step.options, context)


def _check_kind(step: Step, images: np.ndarray) -> None:
    if step.needs_uint8 and images.dtype != np.uint8:
        raise UserError(
            f"data.augment: {_name(step)} needs uint8 images, and these are {images.dtype}",
            "give uint8 images, which are normalized on the device, or leave that step out",
        )
    if step.needs_colour and images.shape[1] not in (1, 3):
        raise UserError(
            f"data.augment: {_name(step)} needs 1 or 3 channels, and these images have "
            f"{images.shape[1]}",
            "leave that step out",
        )


def _name(step: Step) -> str:
    return next(name for name, cls in STEPS.items() if type(step) is cls)
