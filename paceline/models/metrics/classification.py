"""Metrics of one class a sample. Output: (n, classes) logits; target: (n,) int64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.models.losses.classification import main_output
from paceline.models.measure import Metric
from paceline.models.metrics.counts import averaged, per_class
from paceline.models.metrics.curves import area_under_roc, histograms

CALIBRATION_BINS = 15


def logits_and_classes(output: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """(n, classes) logits, (n,) classes, (n,) weights in float64."""
    logits, target = main_output(output), batch.data["target"]
    if logits.ndim != 2 or target.ndim != 1 or target.is_floating_point():
        raise UserError(
            f"metrics of classes need an output of (n, classes) and a target of (n,) whole numbers, and find "
            f"{tuple(logits.shape)} and {tuple(target.shape)} of {str(target.dtype).removeprefix('torch.')}",
            "name other metrics in train.metrics, or give your own with metrics=",
        )
    return logits, target, batch.weights.double()


def top(k: int) -> Metric:
    """The share of samples whose class is among the k with the largest logits; of equal ones the first counts."""

    def sums(output: Any, batch: Batch) -> dict[str, Tensor]:
        logits, target, weights = logits_and_classes(output, batch)
        own = logits.gather(1, target[:, None])
        ahead = (logits > own).sum(1)
        ties = logits == own
        ahead += (
            ties & (torch.arange(logits.shape[1], device=target.device) < target[:, None])
        ).sum(1)
        right = (ahead < k) & torch.isfinite(own[:, 0])
        return {"right": (right * weights).sum(), "count": weights.sum()}

    name = "accuracy" if k == 1 else f"top{k}"
    return Metric(numbers=[name], sums=sums, compute=lambda s: {name: s["right"] / s["count"]})


def class_counts(output: Any, batch: Batch) -> dict[str, Tensor]:
    """(classes,) each: samples of a class, samples that were called so, and those rightly."""
    logits, target, weights = logits_and_classes(output, batch)
    called = logits.argmax(1)
    zeros = torch.zeros(logits.shape[1], dtype=torch.float64, device=logits.device)
    return {
        "actual": zeros.index_add(0, target, weights),
        "predicted": zeros.index_add(0, called, weights),
        "right": zeros.index_add(0, target, weights * (called == target)),
    }


def confusion_counts(output: Any, batch: Batch) -> dict[str, Tensor]:
    """(classes, classes): rows are the true class, columns the predicted one."""
    logits, target, weights = logits_and_classes(output, batch)
    num = logits.shape[1]
    zeros = torch.zeros(num * num, dtype=torch.float64, device=logits.device)
    return {
        "confusion": zeros.index_add(0, target * num + logits.argmax(1), weights).view(num, num)
    }


def odds(logits: Tensor) -> Tensor:
    """log(p / (1 - p)) of each class's probability: the same order as p, and no ties where p rounds to 1."""
    logits = logits.double()
    if logits.shape[1] == 1:
        return logits
    log_p = torch.log_softmax(logits, dim=1)
    result = log_p - torch.log1p(-log_p.exp())
    best = logits.argmax(1, keepdim=True)  # where p is near 1, 1 - p is the sum of the others
    others = torch.logsumexp(logits.scatter(1, best, -torch.inf), dim=1, keepdim=True)
    return result.scatter(1, best, logits.gather(1, best) - others)


def score_counts(output: Any, batch: Batch) -> dict[str, Tensor]:
    logits, target, weights = logits_and_classes(output, batch)
    positive = torch.zeros_like(logits, dtype=torch.float64).scatter(1, target[:, None], 1.0)
    return histograms(odds(logits), positive, weights)


def confidence_counts(output: Any, batch: Batch) -> dict[str, Tensor]:
    logits, target, weights = logits_and_classes(output, batch)
    confidence, called = torch.softmax(logits.double(), dim=1).max(dim=1)
    return calibration_counts(confidence, (called == target).double(), weights)


def calibration_counts(confidence: Tensor, right: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """By bins of equal width of the confidence: weights, and the sums of confidence and of what was right."""
    finite = torch.isfinite(confidence)
    place = (confidence.nan_to_num(0) * CALIBRATION_BINS).long().clamp(0, CALIBRATION_BINS - 1)
    zeros = torch.zeros(CALIBRATION_BINS, dtype=torch.float64, device=confidence.device)
    return {
        "count": zeros.index_add(0, place, weights),
        "confidence": zeros.index_add(0, place, torch.where(finite, confidence, 0) * weights),
        "right": zeros.index_add(0, place, right * weights),
        "unknown": (~finite * weights).sum(),
    }


def calibration_error(sums: Mapping[str, np.ndarray]) -> dict[str, float | np.ndarray]:
    """ece: the mean over samples of |share that is right - confidence| of their bin (Guo et al. 2017, section 2)."""
    count = sums["count"]
    gap = np.abs(sums["right"] - sums["confidence"]).sum() / count.sum()
    return {
        "ece": np.nan if sums["unknown"] else gap,
        "reliability_count": count,
        "reliability_confidence": sums["confidence"] / count,
        "reliability_accuracy": sums["right"] / count,
    }


def balanced(sums: Mapping[str, np.ndarray]) -> dict[str, float | np.ndarray]:
    present = sums["actual"] > 0
    return {"balanced_accuracy": (sums["right"][present] / sums["actual"][present]).mean()}


Make = Callable[[], Metric]
KINDS = ("", "_weighted")
MAKERS: dict[str, tuple[str, Make]] = {
    "accuracy": ("share of samples called rightly", partial(top, 1)),
    "balanced_accuracy": (
        "mean over classes of the share called rightly",
        lambda: Metric(numbers=["balanced_accuracy"], sums=class_counts, compute=balanced),
    ),
    **averaged(
        class_counts,
        "by class, their mean and their mean weighted by samples",
        KINDS,
        all_classes=False,
    ),
    "auc": (
        "area under the ROC curve, each class against the rest, their mean",
        lambda: Metric(numbers=["auc"], sums=score_counts, compute=area_under_roc),
    ),
    "ece": (
        "expected calibration error over 15 bins",
        lambda: Metric(
            numbers=["ece"], sums=confidence_counts, compute=calibration_error, smaller=True
        ),
    ),
}
REPORTS: dict[str, Make] = {
    "per_class": lambda: Metric(sums=class_counts, compute=per_class),
    "confusion": lambda: Metric(sums=confusion_counts, compute=lambda sums: sums),
}
