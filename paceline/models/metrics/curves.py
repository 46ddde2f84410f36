"""ROC and precision-recall curves from histograms of scores, which add over batches and ranks.

Scores in one bin count as ties. So each area comes with a bound: the exact one, over the unbinned scores, differs by no
more. The bins are fine where scores are near 0, and have no end: a score s falls into bin (1 + s / (4 + |s|)) / 2.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

_MOST_BINS, _LEAST_BINS, _ALL_BINS = 16384, 1024, 2**22  # a class; over all classes


def histograms(scores: Tensor, positive: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """(classes, bins) of positive and of all samples. scores, positive: (n, classes) float64, weights: (n,)."""
    num = scores.shape[1]
    bins = max(_LEAST_BINS, min(_MOST_BINS, _ALL_BINS // num))
    finite = torch.isfinite(scores)
    known = scores.nan_to_num(0, 0, 0)
    place = ((1 + known / (4 + known.abs())) / 2 * bins).long().clamp(0, bins - 1)
    place = (place + torch.arange(num, device=scores.device) * bins).flatten()
    zeros = torch.zeros(num * bins, dtype=torch.float64, device=scores.device)
    every = weights[:, None].expand_as(scores)
    return {
        "positive": zeros.index_add(0, place, (positive * every).flatten()).view(num, bins),
        "all": zeros.index_add(0, place, every.flatten()).view(num, bins),
        "unknown": (~finite * every).sum(),
    }


def area_under_roc(sums: Mapping[str, np.ndarray]) -> dict[str, float | np.ndarray]:
    """The share of pairs of a positive and a negative sample that are in the right order, ties counted half."""
    positive = sums["positive"]
    negative = sums["all"] - positive
    below = np.cumsum(negative, axis=1) - negative
    pairs = positive.sum(1) * negative.sum(1)
    tied = (positive * negative).sum(1) / 2
    areas = ((positive * below).sum(1) + tied) / pairs
    areas[(pairs == 0) | bool(sums["unknown"])] = np.nan
    return {
        "auc": _mean(areas, pairs > 0),
        "class_auc": areas,
        "auc_bound": _mean(tied / pairs, pairs > 0),
    }


def average_precision(sums: Mapping[str, np.ndarray]) -> dict[str, float | np.ndarray]:
    """The sum over thresholds of the precision x what the recall grows by."""
    positive = sums["positive"][:, ::-1]  # from the highest score down
    every = sums["all"][:, ::-1]
    called, right = np.cumsum(every, axis=1), np.cumsum(positive, axis=1)
    num = right[:, -1]
    some = positive > 0
    precision = np.divide(right, called, out=np.zeros_like(right), where=some)
    # Within a bin, at best all positives come first, at worst last: the precision at each lies in between.
    best = np.divide(right, called - every + positive, out=np.zeros_like(right), where=some)
    fewest = right - positive + 1
    most = called - positive + 1
    worst = np.divide(fewest, most, out=np.zeros_like(right), where=some)
    areas = (positive * precision).sum(1) / num
    bound = (positive * np.maximum(best - precision, precision - worst)).sum(1) / num
    areas[(num == 0) | bool(sums["unknown"])] = np.nan
    return {
        "map": _mean(areas, num > 0),
        "class_average_precision": areas,
        "map_bound": _mean(bound, num > 0),
    }


def _mean(values: np.ndarray, known: np.ndarray) -> float:
    """Over the classes that have what it takes; nan where none has."""
    return float(values[known].mean()) if known.any() else np.nan
