"""A user's own loss and metrics: functions of (output, target) with one value a sample."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.models.spec import Sums

SampleLoss = Callable[[Any, Any], Tensor]
SampleMetric = Callable[[Any, Any], Tensor]


def from_functions(
    loss: SampleLoss, metrics: Mapping[str, SampleMetric]
) -> Callable[[Any, Batch], Sums]:
    """A user's loss and metrics of (output, target), each giving one value a sample."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        loss = copy.copy(loss)
        setattr(loss, "reduction", "none")  # noqa: B010 - nn.Module's declared attributes are tensors and modules

    def sums(output: Any, batch: Batch) -> Sums:
        target, weights = batch.data["target"], batch.weights
        values = per_sample("loss", loss(output, target), len(batch))
        return Sums(
            weighted_sum(values, weights), weights.sum(), metric_sums(metrics, output, batch)
        )

    return sums


def with_functions(
    loss: Callable[[Any, Batch], Sums], metrics: Mapping[str, SampleMetric]
) -> Callable[[Any, Batch], Sums]:
    """A loss with a user's metrics beside its own."""

    def sums(output: Any, batch: Batch) -> Sums:
        own = loss(output, batch)
        return Sums(own.loss, own.count, {**own.metrics, **metric_sums(metrics, output, batch)})

    return sums


@torch.no_grad()
def metric_sums(
    metrics: Mapping[str, SampleMetric], output: Any, batch: Batch
) -> dict[str, Tensor]:
    target, weights = batch.data["target"], batch.weights
    return {
        name: weighted_sum(per_sample(name, metric(output, target), len(batch)), weights)
        for name, metric in metrics.items()
    }


def weighted_sum(values: Tensor, weights: Tensor) -> Tensor:
    """Of one value a sample; what a row of weight 0 holds never counts, not even where it is not finite."""
    return torch.where(weights > 0, values * weights, 0).sum()


def per_sample(name: str, values: Tensor, num_rows: int) -> Tensor:
    """(n,) from (n, …): one value a sample, so that tails and skipped samples can be weighted exactly."""
    if values.ndim == 0 or values.shape[0] != num_rows:
        raise UserError(
            f"{name} returned shape {tuple(values.shape)} for {num_rows} samples",
            "return one value a sample, for example with reduction='none'",
        )
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    return values.flatten(1).mean(dim=1) if values.ndim > 1 else values
