"""Cross-entropy of the next token, as the mean over a sequence's tokens, so that sums over samples stay exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.models.losses.classification import main_output
from paceline.models.spec import Sums


def next_token(label_smoothing: float = 0.0) -> Callable[[Any, Batch], Sums]:
    """Loss and accuracy of a token. Output: (n, length, vocabulary), or a tuple that it leads; target: (n, length).

    Every sequence has as many tokens, so the mean over samples is the mean over tokens, over tails and ranks too.
    """

    def loss(output: Any, batch: Batch) -> Sums:
        target, weights = batch.data["target"], batch.weights
        logits = main_output(output)
        losses = entropies(logits, target, label_smoothing)
        correct = (logits.argmax(dim=-1) == target).to(weights.dtype).mean(dim=1)
        return Sums(
            (losses * weights).sum(), weights.sum(), {"token_accuracy": (correct * weights).sum()}
        )

    return loss


def entropies(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """(n,) the mean over each sequence's tokens."""
    if logits.shape[:-1] != target.shape:
        raise UserError(
            f"the model's output has shape {tuple(logits.shape)}, for targets of {tuple(target.shape)}",
            "return logits of shape (n, length, vocabulary), for example with --model gpt",
        )
    each = functional.cross_entropy(
        logits.flatten(0, 1), target.flatten(), reduction="none", label_smoothing=label_smoothing
    )
    return each.view(target.shape).mean(dim=1)
