"""`train.class_weights`: what a sample's loss is multiplied by, according to its class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paceline.errors import UserError


def class_weights(
    setting: str | Sequence[float], num_classes: int, counts: np.ndarray | None
) -> tuple[float, ...] | None:
    """One weight a class; None where all count the same. counts: training samples of each class, where known.

    The gradient is sum(weight of the class x loss) / number of samples, and not over the sum of weights, as
    torch's cross_entropy(weight=) averages: so a sample's share does not depend on which others fell into its
    batch, and it stays the same over ranks and accumulation. "balanced" is n / (classes x n of the class), whose
    mean over the training set is 1; a class without samples has weight 0.
    """
    if setting == "none":
        return None
    if not isinstance(setting, str):
        _check(setting, num_classes or len(setting))
        return tuple(setting)
    if counts is None:
        raise UserError(
            'train.class_weights = "balanced" needs the class of every sample, which the data set does not tell',
            "give it an attribute targets or labels, or list the weights",
        )
    present = np.count_nonzero(counts)
    weights = counts.sum() / (present * np.maximum(counts, 1))
    return tuple(float(w) for w in np.where(counts > 0, weights, 0.0))


def _check(weights: Sequence[float], num_classes: int) -> None:
    if len(weights) != num_classes:
        raise UserError(
            f"train.class_weights has {len(weights)} weights, and there are {num_classes} classes",
            "give one weight a class, in the order of the classes",
        )
    if not all(math.isfinite(w) and w >= 0 for w in weights) or not any(weights):
        raise UserError(
            f"train.class_weights = {list(weights)}",
            "weights are at least 0, and not all of them 0",
        )
