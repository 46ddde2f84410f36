"""Any loss over samples with two labels each, as mixup and cutmix make them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from paceline.data.batch import Batch
from paceline.models.spec import Sums


def over_mixed_targets(loss: Callable[[Any, Batch], Sums]) -> Callable[[Any, Batch], Sums]:
    """`loss`, also for batches with `target_b` and `mix`: the sum for each label, weighted by its share.

    That is the loss of the soft label for every loss that is linear in it, as cross-entropy is, whatever else
    `loss` does, since it has to respect weights anyway. Metrics are those of `target`, the label of the larger share.
    """

    def sums(output: Any, batch: Batch) -> Sums:
        data = batch.data
        if not isinstance(data, dict) or "mix" not in data:
            return loss(output, batch)
        share = data["mix"]
        plain = {name: value for name, value in data.items() if name not in ("mix", "target_b")}
        first = Batch(plain, batch.indices, batch.weights, batch.num_real)
        with torch.no_grad():
            reported = loss(output, first)
        second = dataclasses.replace(first, data={**plain, "target": data["target_b"]})
        total = loss(output, _weighted(first, share)).loss
        total = total + loss(output, _weighted(second, 1 - share)).loss
        return Sums(total, reported.count, reported.metrics)

    return sums


def _weighted(batch: Batch, share: torch.Tensor) -> Batch:
    """num_real = 0 says that weights are not all 1."""
    return dataclasses.replace(batch, weights=batch.weights * share, num_real=0)
