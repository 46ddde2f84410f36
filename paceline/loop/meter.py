"""Losses and metrics of the steps since they were last reported: kept on the device, read in one go."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.errors import DivergedError
from paceline.models.spec import Sums
from paceline.parallel.contract import Gradients
from paceline.parallel.world import World


@dataclass(frozen=True)
class StepReport:
    """One step over all ranks, as numbers."""

    step: int
    epoch: float
    samples: int
    lr: float
    micro_batch: int
    rows: int
    loss: float
    metrics: dict[str, float]
    gradient_norm: float | None
    loss_scale: float | None


@dataclass
class _Kept:
    step: int
    epoch: float
    samples: int
    lr: float
    micro_batch: int
    sums: Sums
    norm: Tensor | None
    scale: Tensor | None


class Meter:
    FULL = 256

    def __init__(self, world: World, metrics: Sequence[str]) -> None:
        self._world = world
        self._metrics = list(metrics)
        self._kept: list[_Kept] = []

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def full(self) -> bool:
        return len(self._kept) >= self.FULL

    def add(
        self,
        *,
        step: int,
        epoch: float,
        samples: int,
        lr: float,
        sums: Sums,
        gradients: Gradients,
        micro_batch: int,
        loss_scale: Tensor | None,
    ) -> None:
        scale = None if loss_scale is None else loss_scale.clone()
        self._kept.append(_Kept(step, epoch, samples, lr, micro_batch, sums, gradients.norm, scale))

    def collect(self, last_good: Callable[[], str | None]) -> list[StepReport]:
        """The steps since the last call, summed over ranks. Every rank calls it after the same step.

        Raises DivergedError on every rank where a rank's loss was not finite.
        """
        kept, self._kept = self._kept, []
        if not kept:
            return []
        rows = [k.sums.loss for k in kept] + [k.sums.count for k in kept]
        rows += [k.sums.metrics[name] for name in self._metrics for k in kept]
        table = torch.stack(rows).double().cpu().view(-1, len(kept))
        by_rank = self._world.gather(table)
        loss, count, *metrics = torch.stack(by_rank).sum(dim=0).tolist()
        if not all(map(math.isfinite, loss)):
            self._name_culprit(kept, by_rank, last_good)
        return [
            StepReport(
                step=k.step,
                epoch=k.epoch,
                samples=k.samples,
                lr=k.lr,
                micro_batch=k.micro_batch,
                rows=int(count[i]),
                loss=loss[i] / max(count[i], 1.0),
                metrics={
                    name: metrics[m][i] / max(count[i], 1.0) for m, name in enumerate(self._metrics)
                },
                gradient_norm=None if k.norm is None else float(k.norm),
                loss_scale=None if k.scale is None else float(k.scale),
            )
            for i, k in enumerate(kept)
        ]

    def _name_culprit(
        self, kept: list[_Kept], by_rank: list[Tensor], last_good: Callable[[], str | None]
    ) -> None:
        for i, k in enumerate(kept):
            for rank, table in enumerate(by_rank):
                loss = float(table[0, i])
                if not math.isfinite(loss):
                    raise diverged(f"the loss is {loss}", k.step, rank, k.lr, last_good())


def diverged(
    what: str, step: int, rank: int, lr: float, last_checkpoint: str | None
) -> DivergedError:
    where = (
        f"the last good checkpoint is {last_checkpoint}"
        if last_checkpoint
        else "no checkpoint was saved before"
    )
    return DivergedError(
        f"{what} in step {step} on rank {rank}, at a learning rate of {lr:.4g}; {where}",
        "lower optim.base_lr, lengthen optim.warmup_epochs or set optim.clip_norm = 1.0",
    )
