"""Evaluation: each sample counted exactly once, the same number of calls on every rank."""

from __future__ import annotations

import functools
import math
import operator
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from paceline.config.schema import TrainConfig
from paceline.data.batch import Batch
from paceline.errors import UserError, nearest
from paceline.loop.room import Shortage
from paceline.loop.step import Training
from paceline.models.metrics import SMALLER, compute_metrics
from paceline.models.spec import ModelSpec, Sums
from paceline.parallel.memory import free_memory, is_out_of_memory, words_of
from paceline.parallel.world import World


@dataclass(frozen=True)
class Watched:
    """The metric that `best` and `patience` look at, and which way it is better."""

    name: str
    smaller: bool

    def meets(self, value: float, target: float) -> bool:
        return value <= target if self.smaller else value >= target

    def better(self, value: float, best: float | None) -> bool:
        """Whether `value` beats `best`; what is not finite beats nothing."""
        if not math.isfinite(value):
            return False
        return best is None or (value < best if self.smaller else value > best)


def watched_metric(config: TrainConfig, spec: ModelSpec) -> Watched:
    name = config.metric or ("accuracy" if "accuracy" in spec.numbers else "loss")
    known = ["loss", *spec.numbers]
    if name not in known:
        raise UserError(f"train.metric = {name!r} is not measured", nearest(name, known))
    smaller = "loss" in name or "error" in name or name in smaller_names(spec)
    return Watched(name, smaller if config.goal == "auto" else config.goal == "min")


def smaller_names(spec: ModelSpec) -> set[str]:
    """The metrics that are better the smaller they are, as far as they are known."""
    own = {name for metric in spec.measures if metric.smaller for name in metric.numbers}
    return own | SMALLER


@dataclass(frozen=True)
class Evaluation:
    """arrays: what metrics found besides numbers, for reports."""

    loss: float
    metrics: dict[str, float]
    count: int
    seconds: float
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def value(self, name: str) -> float:
        return self.loss if name == "loss" else self.metrics[name]

    def not_finite(self) -> list[str]:
        return [n for n in ("loss", *self.metrics) if not math.isfinite(self.value(n))]


def evaluate(
    training: Training, batches: Iterable[Batch | None], should_stop: Callable[[], bool]
) -> Evaluation | None:
    """Loss and metrics over all ranks, with the weights that are kept.

    batches: this rank's share, None where it is used up, equally many on every rank.
    Returns None where `should_stop` said so, on every rank after the same batch.
    """
    start = time.monotonic()
    total: Sums | None = None
    most = sys.maxsize  # samples of a pass; each evaluation tries whole batches again
    for part in training.carried.parts:
        part.eval()
    try:
        with training.evaluation_weights():
            for batch in batches:
                sums, most = evaluate_batch(training, batch, most)
                total = sums if total is None else total + sums
                if should_stop():
                    return None
    finally:
        for part in training.carried.parts:
            part.train()
    assert total is not None, "an evaluation has at least one batch"
    return summarize(training.world, training.carried.spec, total, time.monotonic() - start)


def summarize(world: World, spec: ModelSpec, mine: Sums, seconds: float) -> Evaluation:
    """From this rank's sums to what all ranks found. Every rank calls it."""
    means = {"loss": mine.loss, "count": mine.count}
    means |= {f"mean/{name}": value for name, value in mine.metrics.items()}
    named = {
        name: v.detach().to("cpu", torch.float64) for name, v in {**means, **mine.measures}.items()
    }
    sums = {name: value.numpy() for name, value in world.sum_named(named).items()}
    count = max(float(sums["count"]), 1.0)
    metrics = {name: float(sums[f"mean/{name}"]) / count for name in sorted(mine.metrics)}
    arrays: dict[str, np.ndarray] = {}
    if spec.measures:
        measured, arrays = compute_metrics(spec.measures, sums)
        metrics |= measured
    # Decided once: what follows (best, early stopping) must not differ between ranks by a last bit.
    loss, metrics = world.broadcast((float(sums["loss"]) / count, metrics))
    return Evaluation(loss, metrics, int(sums["count"]), seconds, arrays)


def evaluate_batch(training: Training, batch: Batch | None, most: int) -> tuple[Sums, int]:
    """The sums of one batch, in passes of at most `most` samples; halved where memory runs out, and returned."""
    while True:
        try:
            if batch is None:
                return training.carried.evaluate(None), most
            parts = [training.carried.evaluate(part) for part in batch.cut(most)]
            return functools.reduce(operator.add, parts), most
        except Exception as error:
            if batch is None or not is_out_of_memory(error):
                raise
            words = words_of(error)
        free_memory()
        rows, rank = min(most, len(batch)), training.world.rank
        most = rows // 2
        if most < training.room.smallest:
            raise UserError(
                f"rank {rank} ran out of memory in the evaluation of {rows} samples: {words}",
                "use smaller inputs or a smaller model, or bf16",
            )
        training.room.note(Shortage("evaluation", rows, most, [rank], words))
