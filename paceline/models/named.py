"""`Named`: a model of a library as its file here hands it to the registry; and the trial of its input size."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.data.batch import Batch
from paceline.data.generators import generators_kept
from paceline.errors import UserError
from paceline.models.blocks import find_head


@dataclass(frozen=True)
class Facts:
    """What a model must know of the data. channels: 0 where inputs are no images; image_size: 0 where not square."""

    channels: int
    image_size: int
    num_classes: int
    task: str


def input_of(batch: Batch) -> tuple[Tensor, ...]:
    return (batch.data["input"],)


def in_three_channels(batch: Batch) -> tuple[Tensor, ...]:
    """Grey images for a model that wants colours: each channel is the one there is."""
    return (batch.data["input"].expand(-1, 3, -1, -1),)


@dataclass(frozen=True, kw_only=True)
class Named:
    """What a library gives of a `ModelSpec`, with its fields' names."""

    build: Callable[[], Any]
    inputs: Callable[[Batch], tuple[Tensor, ...]] = input_of
    head: Callable[[nn.Module], Sequence[str]] = find_head
    pretrained: Callable[[], Mapping[str, Tensor]] | None = None


def import_extra(package: str, extra: str, model: str) -> Any:
    """A package that only some installations have."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise UserError(
            f"model.name = {model!r} needs {package}, which is not installed",
            f"pip install 'paceline[{extra}]'",
        ) from error


def tried(
    build: Callable[[], nn.Module], name: str, channels: int, image_size: int, hint: str
) -> Callable[[], nn.Module]:
    """`build`, followed by one pass of two blank images: what a model cannot take is told before training.

    The pass is in training mode, as auxiliary heads run there only. It leaves buffers and generators as they were.
    """
    if not image_size:
        return build

    @functools.wraps(build)
    def built() -> nn.Module:
        try:
            module = build()
            _try(module, torch.zeros(2, channels, image_size, image_size))
        except (RuntimeError, AssertionError, ValueError, IndexError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise UserError(
                f"{name} does not fit images of {image_size} x {image_size} pixels: {reason}", hint
            ) from error
        return module

    return built


def _try(module: nn.Module, images: Tensor) -> None:
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    was_training = module.training
    with torch.no_grad(), generators_kept():
        module.train()(images)
    module.train(was_training)
    for name, buffer in module.named_buffers():
        buffer.copy_(before[name])
