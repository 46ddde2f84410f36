"""Losses and metrics as sums over weighted samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.models.spec import Sums

AUXILIARY_WEIGHT = (
    0.3  # of GoogLeNet's and Inception's auxiliary heads (Szegedy et al. 2014, section 5)
)

SampleLoss = Callable[[Any, Any], Tensor]
SampleMetric = Callable[[Any, Any], Tensor]


def classification(label_smoothing: float = 0.0) -> Callable[[Any, Batch], Sums]:
    """Cross-entropy and accuracy. Output: (n, classes), or a tuple of it and auxiliary ones; target: (n,) int64."""

    def entropy(heads: list[Tensor], target: Tensor, reduction: str) -> Tensor:
        losses = [
            functional.cross_entropy(
                head, target, reduction=reduction, label_smoothing=label_smoothing
            )
            for head in heads
        ]
        return losses[0] + AUXILIARY_WEIGHT * sum(losses[1:]) if losses[1:] else losses[0]

    def loss(output: Any, batch: Batch) -> Sums:
        target, weights = batch.data["target"], batch.weights
        heads = [
            head
            for head in (output if isinstance(output, tuple) else (output,))
            if head is not None
        ]
        correct = heads[0].argmax(dim=1) == target
        if batch.num_real == len(batch):  # every weight is 1: half as many small operations
            total, accuracy = entropy(heads, target, "sum"), correct.sum(dtype=weights.dtype)
        else:
            total = (entropy(heads, target, "none") * weights).sum()
            accuracy = (correct * weights).sum()
        return Sums(total, weights.sum(), {"accuracy": accuracy})

    return loss


def from_functions(
    loss: SampleLoss, metrics: Mapping[str, SampleMetric]
) -> Callable[[Any, Batch], Sums]:
    """A user's loss and metrics of (output, target), each giving one value a sample."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        loss = copy.copy(loss)
        setattr(loss, "reduction", "none")  # noqa: B010 - nn.Module's declared attributes are tensors and modules

    def sums(output: Any, batch: Batch) -> Sums:
        target, weights = batch.data["target"], batch.weights
        values = _per_sample("loss", loss(output, target), len(batch))
        with torch.no_grad():
            totals = {
                name: (_per_sample(name, metric(output, target), len(batch)) * weights).sum()
                for name, metric in metrics.items()
            }
        return Sums((values * weights).sum(), weights.sum(), totals)

    return sums


def _per_sample(name: str, values: Tensor, num_rows: int) -> Tensor:
    """(n,) from (n, …): one value a sample, so that tails and skipped samples can be weighted exactly."""
    if values.ndim == 0 or values.shape[0] != num_rows:
        raise UserError(
            f"{name} returned shape {tuple(values.shape)} for {num_rows} samples",
            "return one value a sample, for example with reduction='none'",
        )
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    return values.flatten(1).mean(dim=1) if values.ndim > 1 else values
