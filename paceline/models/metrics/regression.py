"""Metrics of numbers. Output and target: (n,) or (n, k), the mean over the k."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.data.batch import Batch
from paceline.models.losses.classification import main_output
from paceline.models.losses.multilabel import paired
from paceline.models.measure import Metric

Sums = Mapping[str, np.ndarray]


def error_sums(origin: Tensor | None) -> Callable[[Any, Batch], dict[str, Tensor]]:
    """origin: some sample's target, from which spread is measured: sums of squares far from 0 would lose it."""

    def sums(output: Any, batch: Batch) -> dict[str, Tensor]:
        found, wanted = paired(
            main_output(output).double(), batch.data["target"].double(), "number"
        )
        weights = batch.weights.double()[:, None]
        from_origin = wanted if origin is None else wanted - origin.to(wanted).flatten()
        error = torch.where(weights > 0, found - wanted, 0)
        from_origin = torch.where(weights > 0, from_origin, 0)
        return {
            "absolute": (error.abs() * weights).sum(0),
            "squared": (error.square() * weights).sum(0),
            "sum": (from_origin * weights).sum(0),
            "square": (from_origin.square() * weights).sum(0),
            "count": weights.sum(),
        }

    return sums


def r2(sums: Sums) -> dict[str, float | np.ndarray]:
    """1 - squared error / spread of the targets; where they are all equal, 1 for no error and else 0."""
    spread = sums["square"] - sums["sum"] ** 2 / sums["count"]
    spread = np.where(spread <= 1e-14 * sums["square"], 0, spread)  # what rounding left
    constant = np.where(sums["squared"] == 0, 1.0, 0.0)
    each = np.where(spread > 0, 1 - sums["squared"] / spread, constant)
    each[np.isnan(sums["squared"])] = np.nan
    return {"r2": each.mean() if sums["count"] > 1 else np.nan}


def metrics(origin: Tensor | None) -> dict[str, tuple[str, Callable[[], Metric]]]:
    sums = error_sums(origin)
    return {
        "mae": (
            "mean absolute error",
            lambda: Metric(
                numbers=["mae"],
                sums=sums,
                compute=lambda s: {"mae": (s["absolute"] / s["count"]).mean()},
                smaller=True,
            ),
        ),
        "rmse": (
            "root of the mean squared error",
            lambda: Metric(
                numbers=["rmse"],
                sums=sums,
                compute=lambda s: {"rmse": np.sqrt(s["squared"] / s["count"]).mean()},
                smaller=True,
            ),
        ),
        "r2": (
            "share of the targets' spread that is explained",
            lambda: Metric(numbers=["r2"], sums=sums, compute=r2),
        ),
    }
