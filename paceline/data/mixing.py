"""mixup and cutmix: pairs of samples mixed on the device, the same on any number of ranks.

A group is what runs through a device together: a piece of the global order that `order.step_chunks` cuts without
knowing ranks. In it, each real sample is mixed with the one before it; how strongly is drawn once a group, from (seed,
epoch, where the group begins in the epoch's order).
mixup: Zhang et al. 2018. cutmix: Yun et al. 2019. The arithmetic is that of torchvision's MixUp and CutMix.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.config.schema import DataConfig
from paceline.data import order
from paceline.data.batch import Batch
from paceline.data.draws import frozen_generator, key
from paceline.data.loader import StepBatches
from paceline.errors import UserError

_MIXING = 0x313C  # keeps these keys apart from those of order and augmentation


@dataclass(frozen=True)
class Drawn:
    """What was drawn for a group.

    share: of a sample's own image and label. box: (top, bottom, left, right) that cutmix takes from the other; None:
    mixup.
    """

    share: float
    box: tuple[int, int, int, int] | None


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """mixup, cutmix: their alpha, 0 for off. probability: that a group is mixed. switch: by cutmix, if both are on."""

    seed: int
    mixup: float
    cutmix: float
    probability: float
    switch: float

    def step(self, step: StepBatches, *, first: int, rows: int, group: int) -> StepBatches:
        """A rank's part of a step, mixed. first: the number of its first micro-batch, counted over all ranks. rows: of
        a micro-batch. group: samples that are mixed among themselves; divides `rows`."""
        chunks = order.step_chunks(step.position, step.stop, step.stop - step.position, group)
        mixed = []
        for i, batch in enumerate(step.micro_batches):
            start = step.position + (first + i) * rows
            own = [c for c in chunks if start <= c.start < start + len(batch)]
            if batch.num_real > 0:
                batch = self._groups(
                    batch, [range(c.start - start, c.stop - start) for c in own], step.epoch, start
                )
            mixed.append(batch)
        return dataclasses.replace(step, micro_batches=mixed)

    def _groups(self, batch: Batch, groups: Sequence[range], epoch: int, start: int) -> Batch:
        if len(groups) == 1:
            return self(batch, epoch=epoch, position=start + groups[0].start)
        parts = [
            _with_two_labels(self(_part(batch, g), epoch=epoch, position=start + g.start))
            for g in groups
        ]
        data = {name: torch.cat([part.data[name] for part in parts]) for name in parts[0].data}
        return Batch(data, batch.indices, batch.weights, batch.num_real)

    def __call__(self, batch: Batch, *, epoch: int, position: int) -> Batch:
        """The batch with mixed inputs; `target` is then the label of the larger share, `target_b` the other one, and
        `mix`, (n,), the share of `target`."""
        data = batch.data
        images, labels = data["input"], data["target"]
        drawn = self.draw(epoch, position, tuple(images.shape[-2:]))
        if drawn is None or batch.num_real < 2:
            return batch
        partner = _partners(batch)
        others = labels.index_select(0, partner)
        first, second = (labels, others) if drawn.share >= 0.5 else (others, labels)
        share = max(drawn.share, 1 - drawn.share)
        mixed = {
            **data,
            "input": _mixed(images, images.index_select(0, partner), drawn),
            "target": first,
            "target_b": second,
            "mix": torch.full((len(batch),), share, dtype=images.dtype, device=images.device),
        }
        return Batch(mixed, batch.indices, batch.weights, batch.num_real)

    def draw(self, epoch: int, position: int, sides: tuple[int, ...]) -> Drawn | None:
        """Nothing for a group that stays as it is. position: where it begins. sides: height and width."""
        numbers = frozen_generator(key(_MIXING, self.seed, epoch, position))
        whether, which, down, right = numbers.random_sample(4).tolist()
        if whether >= self.probability:
            return None
        by_cutmix = bool(self.cutmix) and (not self.mixup or which < self.switch)
        alpha = self.cutmix if by_cutmix else self.mixup
        share = float(numbers.beta(alpha, alpha))
        if not by_cutmix:
            return Drawn(share, None)
        box = _box(share, down, right, *sides)
        top, bottom, left, right_ = box
        return Drawn(1 - (bottom - top) * (right_ - left) / math.prod(sides), box)


def _part(batch: Batch, rows: range) -> Batch:
    """Some rows of a batch; only where some were skipped, it asks the device how many are left."""
    data = {name: value[rows.start : rows.stop] for name, value in batch.data.items()}
    weights = batch.weights[rows.start : rows.stop]
    whole = batch.num_real == len(batch)
    num_real = len(rows) if whole else int(torch.count_nonzero(weights))
    return Batch(data, batch.indices[rows.start : rows.stop], weights, num_real)


def _with_two_labels(batch: Batch) -> Batch:
    """A batch that was not mixed, in the form of one that was."""
    if "mix" in batch.data:
        return batch
    images = batch.data["input"]
    mix = torch.ones(len(batch), dtype=images.dtype, device=images.device)
    data = {**batch.data, "target_b": batch.data["target"], "mix": mix}
    return Batch(data, batch.indices, batch.weights, batch.num_real)


def _box(
    share: float, down: float, right: float, height: int, width: int
) -> tuple[int, int, int, int]:
    """A window of (1 - share) of the image around a random point, clipped to the image."""
    half = 0.5 * math.sqrt(1 - share)
    y, x = int(down * height), int(right * width)
    tall, wide = int(half * height), int(half * width)
    return max(y - tall, 0), min(y + tall, height), max(x - wide, 0), min(x + wide, width)


def _partners(batch: Batch) -> Tensor:
    """(n,) the row that each row is mixed with: for a real one the real one before it, for others itself.

    The order of rows is found on the device, which nothing here waits for.
    """
    rows = torch.arange(len(batch), device=batch.weights.device)
    if batch.num_real == len(batch):
        return rows.roll(1)
    real = torch.argsort(batch.weights, descending=True, stable=True)[: batch.num_real]
    return rows.scatter(0, real, real.roll(1))


def _mixed(images: Tensor, others: Tensor, drawn: Drawn) -> Tensor:
    if drawn.box is None:
        return others.mul_(1 - drawn.share).add_(images.mul(drawn.share))
    top, bottom, left, right = drawn.box
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = others[..., top:bottom, left:right]
    return mixed


def make_mixing(config: DataConfig, seed: int) -> Mixing | None:
    """None where nothing is mixed."""
    if not (config.mixup or config.cutmix) or not config.mix_probability:
        return None
    return Mixing(
        seed=seed,
        mixup=config.mixup,
        cutmix=config.cutmix,
        probability=config.mix_probability,
        switch=config.mix_switch,
    )


def check_mixing(config: DataConfig, sample: Any) -> None:
    """sample: the data of a micro-batch, before `Preparation`."""
    setting = "data.mixup" if config.mixup else "data.cutmix"
    leaves = sample if isinstance(sample, dict) else {}
    target, images = leaves.get("target"), leaves.get("input")
    if not isinstance(target, Tensor) or target.dtype != torch.int64 or target.ndim != 1:
        raise UserError(
            f"{setting} mixes the classes of samples, and {_what('target', target)}",
            f"set {setting} = 0, or give every sample its class as an integer `target`",
        )
    pixels = isinstance(images, Tensor) and images.dtype == torch.uint8 and images.ndim >= 4
    floats = isinstance(images, Tensor) and images.is_floating_point() and images.ndim >= 2
    if not (pixels or floats):
        raise UserError(
            f"{setting} mixes images, and {_what('input', images)}", f"set {setting} = 0"
        )
    if config.cutmix and isinstance(images, Tensor) and images.ndim != 4:
        raise UserError(
            f"data.cutmix cuts windows out of images, and {_what('input', images)}",
            "set data.cutmix = 0; data.mixup takes inputs of any shape",
        )


def _what(name: str, found: Any) -> str:
    if isinstance(found, Tensor):
        kind = str(found.dtype).removeprefix("torch.")
        return f"these samples have the {name} {kind} of shape {tuple(found.shape[1:])}"
    return f"these samples have no tensor {name!r}"
