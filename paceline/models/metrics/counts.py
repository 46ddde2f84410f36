"""Precision, recall and F1 from counts by class: how often a class was there, was called, and was called rightly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from torch import Tensor

from paceline.models.measure import Metric

Counts = Mapping[str, np.ndarray]


def per_class(sums: Counts) -> dict[str, float | np.ndarray]:
    """(classes,) each. What has no sample to be computed from is 0."""
    actual, predicted, right = sums["actual"], sums["predicted"], sums["right"]
    return {
        "class_count": actual,
        "class_predicted": predicted,
        "class_recall": _share(right, actual),
        "class_precision": _share(right, predicted),
        "class_f1": _share(2 * right, actual + predicted),
    }


def averages(
    name: str, sums: Counts, *, kinds: Sequence[str], all_classes: bool
) -> dict[str, float | np.ndarray]:
    """The mean over classes, and the other kinds asked for: weighted by samples, and micro, over all calls at once.

    all_classes: count those too that were neither there nor called.
    """
    values = np.asarray(per_class(sums)[f"class_{name}"])
    actual = sums["actual"]
    met = np.ones_like(actual, bool) if all_classes else (actual + sums["predicted"]) > 0
    whole = {key: np.asarray(value.sum()) for key, value in sums.items()}
    found = {
        "": values[met].mean() if met.any() else np.nan,
        "_weighted": (values * actual).sum() / actual.sum() if actual.sum() else np.nan,
        "_micro": float(per_class(whole)[f"class_{name}"]),
    }
    return {name + kind: found[kind] for kind in kinds}


def averaged(
    counts: Callable[..., dict[str, Tensor]], what: str, kinds: Sequence[str], *, all_classes: bool
) -> dict[str, tuple[str, Callable[[], Metric]]]:
    """Precision, recall and F1 as metrics by name, with what they say of themselves. counts: their sums."""

    def make(name: str) -> Metric:
        compute = partial(averages, name, kinds=kinds, all_classes=all_classes)
        return Metric(numbers=[name + kind for kind in kinds], sums=counts, compute=compute)

    names = ("precision", "recall", "f1")
    return {name: (f"{name} {what}", partial(make, name)) for name in names}


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros_like(np.asarray(whole, float)), where=whole > 0)
