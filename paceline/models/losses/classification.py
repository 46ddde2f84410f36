"""Cross-entropy with accuracy, for one class a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.models.spec import Sums

AUXILIARY_WEIGHT = (
    0.3  # of GoogLeNet's and Inception's auxiliary heads (Szegedy et al. 2014, section 5)
)


def classification(
    label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None
) -> Callable[[Any, Batch], Sums]:
    """Cross-entropy and accuracy. Output: (n, classes), or a tuple of it and auxiliary ones; target: (n,) int64.

    class_weights: of each class's losses, as `models/class_weights.py` says; accuracy counts every sample the same.
    """
    on_device: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def weights_for(head: Tensor) -> Tensor | None:
        if class_weights is None:
            return None
        if (head.device, head.dtype) not in on_device:
            made = torch.tensor(class_weights, device=head.device, dtype=head.dtype)
            on_device[head.device, head.dtype] = made
        return on_device[head.device, head.dtype]

    def entropy(heads: list[Tensor], target: Tensor, reduction: str) -> Tensor:
        losses = [
            functional.cross_entropy(
                head,
                target,
                weight=weights_for(head),
                reduction=reduction,
                label_smoothing=label_smoothing,
            )
            for head in heads
        ]
        return losses[0] + AUXILIARY_WEIGHT * sum(losses[1:]) if losses[1:] else losses[0]

    def loss(output: Any, batch: Batch) -> Sums:
        target, weights = batch.data["target"], batch.weights
        heads = heads_of(output)
        correct = heads[0].argmax(dim=1) == target
        if batch.num_real == len(batch):  # every weight is 1: half as many small operations
            total, accuracy = entropy(heads, target, "sum"), correct.sum(dtype=weights.dtype)
        else:
            total = (entropy(heads, target, "none") * weights).sum()
            accuracy = (correct * weights).sum()
        return Sums(total, weights.sum(), {"accuracy": accuracy})

    return loss


def heads_of(output: Any) -> list[Tensor]:
    """The model's output and its auxiliary ones, where it has any."""
    return [
        head for head in (output if isinstance(output, tuple) else (output,)) if head is not None
    ]


def main_output(output: Any) -> Tensor:
    """What is judged of a model's output: the tensor that it is, or the first of a tuple of heads."""
    first = heads_of(output)[0]
    if not isinstance(first, Tensor):
        raise UserError(
            f"the model's output is a {type(first).__name__}, no tensor",
            "let forward return a tensor, or give a loss and metrics of your own",
        )
    return first
