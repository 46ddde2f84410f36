"""Losses by name, as exact sums over weighted samples: a row of weight 0 never counts. A new one is a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.config.schema import TrainConfig
from paceline.data.batch import Batch
from paceline.models.losses.classification import classification
from paceline.models.losses.functions import from_functions
from paceline.models.losses.multilabel import binary
from paceline.models.losses.regression import ERRORS, regression
from paceline.models.losses.tokens import next_token
from paceline.models.spec import Sums

__all__ = ["LOSSES", "classification", "from_functions"]

LossSums = Callable[[Any, Batch], Sums]

# By name: the sums, from the training settings. Which name `auto` means, `models/objective.py` says.
LOSSES: dict[str, Callable[[TrainConfig], LossSums]] = {
    "cross-entropy": lambda config: classification(config.label_smoothing),
    "next-token": lambda config: next_token(config.label_smoothing),
    "bce": lambda config: binary(config.label_smoothing),
    **{name: lambda config, name=name: regression(name) for name in ERRORS},  # type: ignore[misc]
}
