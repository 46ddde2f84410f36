"""Metrics of sequences of tokens. Output: (n, length, vocabulary); target: (n, length) int64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from paceline.data.batch import Batch
from paceline.models.losses.classification import main_output
from paceline.models.losses.tokens import entropies
from paceline.models.measure import Metric


def _entropy_sums(output: Any, batch: Batch) -> dict[str, Tensor]:
    weights = batch.weights.double()
    each = entropies(main_output(output), batch.data["target"]).double()
    return {"entropy": (each * weights).sum(), "count": weights.sum()}


MAKERS: dict[str, tuple[str, Callable[[], Metric]]] = {
    "perplexity": (
        "e to the mean cross-entropy of a token",
        lambda: Metric(
            numbers=["perplexity"],
            sums=_entropy_sums,
            compute=lambda s: {"perplexity": np.exp(s["entropy"] / s["count"])},
            smaller=True,
        ),
    ),
}
