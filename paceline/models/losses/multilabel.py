"""Binary cross-entropy with logits: for several labels a sample, or, one class a sample, for each class by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.models.losses.classification import main_output
from paceline.models.losses.functions import weighted_sum
from paceline.models.spec import Sums


def binary(label_smoothing: float = 0.0) -> Callable[[Any, Batch], Sums]:
    """The mean over a sample's outputs of the binary cross-entropy.

    Output: (n, classes) logits, or (n,) for one. Target: (n, classes) or (n,) float between 0 and 1, with
    `label_accuracy`, the share of labels that are right; or (n,) int64 classes, with `accuracy`. Smoothing moves
    targets towards 1/2, and classes towards 1/classes (Wightman et al. 2021, section 2.2).
    """

    def loss(output: Any, batch: Batch) -> Sums:
        target, weights = batch.data["target"], batch.weights
        logits = main_output(output)
        if target.is_floating_point():
            logits, wanted = paired(logits, target, "label")
            name, right = "label_accuracy", ((logits > 0) == (wanted > 0.5)).float().mean(dim=1)
            others = 2
        else:
            wanted = functional.one_hot(target, logits.shape[1]).to(logits.dtype)
            name, right = "accuracy", logits.argmax(dim=1) == target
            others = logits.shape[1]
        if label_smoothing:
            wanted = wanted * (1 - label_smoothing) + label_smoothing / others
        values = functional.binary_cross_entropy_with_logits(
            logits, wanted.to(logits.dtype), reduction="none"
        ).mean(dim=1)
        return Sums(
            weighted_sum(values, weights), weights.sum(), {name: (right * weights).sum().detach()}
        )

    return loss


def paired(output: Tensor, target: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Both as (n, k). Never broadcast: (n, 1) against (n,) would silently compare each with all."""
    pair = output.flatten(1) if output.ndim > 1 else output[:, None]
    wanted = target.flatten(1) if target.ndim > 1 else target[:, None]
    if pair.shape != wanted.shape:
        raise UserError(
            f"the model gives outputs of shape {tuple(output.shape[1:])} a sample, and the {what}s have "
            f"{tuple(target.shape[1:])}",
            f"let the model give one output a {what}",
        )
    return pair, wanted
