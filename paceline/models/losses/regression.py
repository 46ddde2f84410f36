"""Losses of numbers: squared, absolute and Huber's error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

from paceline.data.batch import Batch
from paceline.models.losses.classification import main_output
from paceline.models.losses.functions import weighted_sum
from paceline.models.losses.multilabel import paired
from paceline.models.spec import Sums

ERRORS: dict[str, Callable[..., Tensor]] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,  # quadratic up to an error of 1, linear beyond
}


def regression(name: str) -> Callable[[Any, Batch], Sums]:
    """The mean of the error over a sample's numbers, and `mae`. Output and target: (n,) or (n, k)."""
    error = ERRORS[name]

    def loss(output: Any, batch: Batch) -> Sums:
        weights = batch.weights
        found, wanted = paired(main_output(output), batch.data["target"], "number")
        wanted = wanted.to(found.dtype)
        values = error(found, wanted, reduction="none").mean(dim=1)
        absolute = (found.detach() - wanted).abs().mean(dim=1)
        return Sums(
            weighted_sum(values, weights), weights.sum(), {"mae": weighted_sum(absolute, weights)}
        )

    return loss
