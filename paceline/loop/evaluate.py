"""Evaluation: each sample counted exactly once, the same number of calls on every rank."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from paceline.config.schema import TrainConfig
from paceline.data.batch import Batch
from paceline.errors import UserError, nearest
from paceline.loop.step import Training
from paceline.models.spec import Sums


@dataclass(frozen=True)
class Watched:
    """The metric that `best` and `patience` look at, and which way it is better."""

    name: str
    smaller: bool

    def better(self, value: float, best: float | None) -> bool:
        """Whether `value` beats `best`; what is not finite beats nothing."""
        if not math.isfinite(value):
            return False
        return best is None or (value < best if self.smaller else value > best)


def watched_metric(config: TrainConfig, metrics: Sequence[str]) -> Watched:
    name = config.metric or ("accuracy" if "accuracy" in metrics else "loss")
    if name not in ("loss", *metrics):
        raise UserError(
            f"train.metric = {name!r} is not measured", nearest(name, ["loss", *metrics])
        )
    smaller = "loss" in name or "error" in name if config.goal == "auto" else config.goal == "min"
    return Watched(name, smaller)


@dataclass(frozen=True)
class Evaluation:
    loss: float
    metrics: dict[str, float]
    count: int
    seconds: float

    def value(self, name: str) -> float:
        return self.loss if name == "loss" else self.metrics[name]


def evaluate(
    training: Training, batches: Iterable[Batch | None], should_stop: Callable[[], bool]
) -> Evaluation | None:
    """Loss and metrics over all ranks, with the averaged weights where there are any.

    batches: this rank's share, None where it is used up, equally many on every rank.
    Returns None where `should_stop` said so, on every rank after the same batch.
    """
    start = time.monotonic()
    total: Sums | None = None
    averaged = (
        training.average.in_place() if training.average is not None else contextlib.nullcontext()
    )
    for part in training.carried.parts:
        part.eval()
    try:
        with averaged:
            for batch in batches:
                sums = training.carried.evaluate(batch)
                total = sums if total is None else total + sums
                if should_stop():
                    return None
    finally:
        for part in training.carried.parts:
            part.train()
    assert total is not None, "an evaluation has at least one batch"
    names = sorted(total.metrics)
    mine = torch.stack(
        [v.to(torch.float64) for v in (total.loss, total.count, *(total.metrics[n] for n in names))]
    )
    everyone = torch.stack(training.world.gather(mine.cpu())).sum(dim=0)
    # Decided once: what follows (best, early stopping) must not differ between ranks by a last bit.
    loss, count, *metrics = training.world.broadcast(everyone.tolist())
    return Evaluation(
        loss=loss / max(count, 1.0),
        metrics={name: value / max(count, 1.0) for name, value in zip(names, metrics, strict=True)},
        count=int(count),
        seconds=time.monotonic() - start,
    )
