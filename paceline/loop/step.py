"""One optimizer step, in the order in which it happens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline.config.schema import RunConfig
from paceline.data.batch import Batch
from paceline.loop.room import Room, Shortage
from paceline.models.spec import Sums
from paceline.optim.averaging import Average
from paceline.optim.build import set_learning_rate
from paceline.optim.schedule import Schedule
from paceline.optim.schedule_free import averaged_by
from paceline.optim.update import Update
from paceline.parallel.contract import Carried, Gradients
from paceline.parallel.memory import ShortOfMemoryError
from paceline.parallel.precision import LossScale
from paceline.parallel.statistics import has_groups
from paceline.parallel.world import World
from paceline.records.phases import PhaseClock


@dataclass
class Training:
    """What a step works with."""

    config: RunConfig
    world: World
    clock: PhaseClock
    carried: Carried
    optimizer: Optimizer
    schedule: Schedule
    loss_scale: LossScale | None
    average: Average | None
    room: Room
    update: Update
    _counts: dict[int, Tensor] = field(default_factory=dict)

    @contextlib.contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        """Inside, the model has the weights that are evaluated and kept, afterwards those that are trained again.

        They differ where weights are averaged: here, or by a schedule-free optimizer.
        """
        with contextlib.ExitStack() as stack:
            if self.average is not None:
                stack.enter_context(self.average.in_place())
            if self.config.optim.is_schedule_free:
                stack.enter_context(averaged_by(self.optimizer))
            yield

    def count(self, value: int) -> Tensor:
        """A count as a 0-d device tensor; made once a value, since making one may wait for the device."""
        if value not in self._counts:
            self._counts[value] = torch.tensor(float(value), device=self.world.device)
        return self._counts[value]


def train_step(
    training: Training, micro_batches: Sequence[Batch], *, step: int, count: int
) -> tuple[Sums, Gradients]:
    """Moves the weights by one global batch.

    micro_batches: this rank's share, on its device. count: real samples of the global batch, over all ranks.
    Returns this rank's sums and what is known of the gradients.
    """
    config, clock, optimizer = training.config, training.clock, training.optimizer
    scale = training.loss_scale.scale if training.loss_scale is not None else None

    set_learning_rate(optimizer, training.schedule.learning_rate(step))
    sums = make_gradients(training, micro_batches, step=step, count=count)
    with clock.phase("optimizer"):
        gradients = training.carried.finish_gradients(
            optimizer,
            max_norm=config.optim.clip_norm,
            loss_scale=scale,
            want_norm=config.records.gradient_norm,
        )
        # Only fp16 asks the device whether to skip: its overflows are expected, and cured by a smaller scale.
        if training.loss_scale is None or bool(gradients.finite):
            _update(training)
        if training.loss_scale is not None and gradients.finite is not None:
            training.loss_scale.update(gradients.finite)
        if training.average is not None:
            training.average.update(step)
    return sums, gradients


def make_gradients(
    training: Training, micro_batches: Sequence[Batch], *, step: int, count: int
) -> Sums:
    """Forward and backward of a step; again in smaller passes where a rank ran out of memory."""
    while True:
        training.optimizer.zero_grad(set_to_none=True)
        try:
            return training.carried.forward_backward(
                training.room.cut(micro_batches),
                first=training.room.first,
                step=step,
                count=training.count(count),
                loss_scale=training.loss_scale.scale if training.loss_scale is not None else None,
            )
        except ShortOfMemoryError as error:
            groups = any(has_groups(part) for part in training.carried.parts)
            training.room.shrink(error, has_groups=groups)


def _update(training: Training) -> None:
    words = training.update.step()
    if words:
        rows, rank = training.room.rows, training.world.rank
        training.room.note(Shortage("optimizer", rows, rows, [rank], words))
