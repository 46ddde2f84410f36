"""What a run is after: the task that the data tells, the loss for it, and how wide the model's output must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from paceline.config.schema import TrainConfig
from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.models.losses import LOSSES, from_functions
from paceline.models.losses.functions import with_functions
from paceline.models.losses.regression import ERRORS
from paceline.models.spec import Sums

Task = Literal["classification", "multi-label", "regression", ""]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """task: "" where a user's own loss says nothing of it. num_outputs: 0 where the data does not tell.

    metrics: the names of the sums that `loss` gives besides the loss: what every training step reports.
    """

    task: Task
    num_outputs: int
    loss: Callable[[Any, Batch], Sums]
    metrics: Sequence[str]


def make_objective(
    config: TrainConfig,
    *,
    target: Tensor | None = None,
    num_classes: int = 0,
    loss: Any = None,
    metrics: Mapping[str, Any] | None = None,
) -> Objective:
    """target: of some samples, (n, …); None where there is none, which is taken for classes.

    loss, metrics: a user's functions of (output, target), instead of `train.loss`, or beside its own metrics.
    """
    own = dict(metrics or {})
    task = task_of(config.loss, target, num_classes)
    outputs = num_outputs(task, target, num_classes)
    if loss is not None:
        return Objective(
            task=task, num_outputs=outputs, loss=from_functions(loss, own), metrics=list(own)
        )
    name = config.loss if config.loss != "auto" else _AUTO[task]
    _check(config, name, target)
    sums = LOSSES[name](config)
    return Objective(
        task=task,
        num_outputs=outputs,
        loss=with_functions(sums, own) if own else sums,
        metrics=[*_STEP_METRICS[task], *own],
    )


_AUTO = {"classification": "cross-entropy", "multi-label": "bce", "regression": "mse"}
_STEP_METRICS = {
    "classification": ["accuracy"],
    "multi-label": ["label_accuracy"],
    "regression": ["mae"],
}


def task_of(loss: str, target: Tensor | None, num_classes: int) -> Task:
    """What the samples are labelled with; a loss that is named decides where several would fit."""
    if loss in ERRORS:
        return "regression"
    whole = target is None or not target.is_floating_point()
    if loss == "cross-entropy" or whole:
        return "classification"
    assert target is not None, "what is not whole is there"
    if loss == "bce" or (num_classes and tuple(target.shape[1:]) == (num_classes,)):
        return "multi-label"
    return "regression"


def num_outputs(task: Task, target: Tensor | None, num_classes: int) -> int:
    if task == "classification" or target is None:
        return num_classes
    return target[0].numel()


def _check(config: TrainConfig, name: str, target: Tensor | None) -> None:
    if config.label_smoothing and name in ERRORS:
        raise UserError(
            f"train.label_smoothing = {config.label_smoothing:g} has no meaning for the loss {name}",
            "set it to 0, or train.loss to cross-entropy or bce",
        )
    numbers = target is not None and target.is_floating_point() and target.ndim == 1
    if name == "cross-entropy" and numbers:
        raise UserError(
            'train.loss = "cross-entropy" needs classes, and the targets are numbers with a fraction',
            'give int64 targets, or set train.loss to "mse", "l1" or "huber"',
        )
