"""Metrics of several labels a sample. Output: (n, labels) logits; target: the same shape, a label holds above 1/2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline.data.batch import Batch
from paceline.models.losses.classification import main_output
from paceline.models.losses.multilabel import paired
from paceline.models.measure import Metric
from paceline.models.metrics.classification import calibration_counts, calibration_error
from paceline.models.metrics.counts import averaged, per_class
from paceline.models.metrics.curves import area_under_roc, average_precision, histograms


def logits_and_labels(output: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """(n, labels) logits and whether each label holds, (n,) weights in float64."""
    logits, target = paired(main_output(output), batch.data["target"], "label")
    return logits, target > 0.5, batch.weights.double()


def label_counts(output: Any, batch: Batch) -> dict[str, Tensor]:
    logits, holds, weights = logits_and_labels(output, batch)
    called, every = logits > 0, weights[:, None]
    return {
        "actual": (holds * every).sum(0),
        "predicted": (called * every).sum(0),
        "right": ((called & holds) * every).sum(0),
    }


def agreement_counts(output: Any, batch: Batch) -> dict[str, Tensor]:
    logits, holds, weights = logits_and_labels(output, batch)
    same = (logits > 0) == holds
    return {
        "labels": (same.double().mean(1) * weights).sum(),
        "subsets": (same.all(1) * weights).sum(),
        "count": weights.sum(),
    }


def score_counts(output: Any, batch: Batch) -> dict[str, Tensor]:
    logits, holds, weights = logits_and_labels(output, batch)
    return histograms(logits.double(), holds.double(), weights)


def confidence_counts(output: Any, batch: Batch) -> dict[str, Tensor]:
    logits, holds, weights = logits_and_labels(output, batch)
    every = weights[:, None].expand_as(logits).flatten()
    confidence = torch.sigmoid(logits.double()).flatten()
    return calibration_counts(confidence, holds.double().flatten(), every)


Make = Callable[[], Metric]
KINDS = ("", "_micro", "_weighted")
MAKERS: dict[str, tuple[str, Make]] = {
    "label_accuracy": (
        "share of labels called rightly",
        lambda: Metric(
            numbers=["label_accuracy"],
            sums=agreement_counts,
            compute=lambda s: {"label_accuracy": s["labels"] / s["count"]},
        ),
    ),
    "subset_accuracy": (
        "share of samples with every label right",
        lambda: Metric(
            numbers=["subset_accuracy"],
            sums=agreement_counts,
            compute=lambda s: {"subset_accuracy": s["subsets"] / s["count"]},
        ),
    ),
    **averaged(
        label_counts,
        "by label, their mean, over all labels at once, and weighted by samples",
        KINDS,
        all_classes=True,
    ),
    "map": (
        "mean average precision over labels",
        lambda: Metric(numbers=["map"], sums=score_counts, compute=average_precision),
    ),
    "auc": (
        "area under the ROC curve by label, their mean",
        lambda: Metric(numbers=["auc"], sums=score_counts, compute=area_under_roc),
    ),
    "ece": (
        "expected calibration error of the labels' probabilities over 15 bins",
        lambda: Metric(
            numbers=["ece"], sums=confidence_counts, compute=calibration_error, smaller=True
        ),
    ),
}
REPORTS: dict[str, Make] = {"per_class": lambda: Metric(sums=label_counts, compute=per_class)}
