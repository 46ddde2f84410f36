"""What a run is after: the task that the data tells, the loss for it, and how wide the model's output must be."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from paceline.config.schema import TrainConfig
from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.models.class_weights import class_weights
from paceline.models.losses import LOSSES, classification, from_functions
from paceline.models.losses.functions import with_functions
from paceline.models.losses.regression import ERRORS
from paceline.models.metrics import Metric, auto_names, make_metrics
from paceline.models.spec import ModelSpec, Sums

Task = Literal["classification", "multi-label", "regression", "tokens", ""]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """task: "" where a user's own loss says nothing of it. num_outputs: 0 where the data does not tell.

    metrics: the names of the sums that `loss` gives besides the loss: what every training step reports.
    measures: what evaluations measure besides.
    """

    task: Task
    num_outputs: int
    loss: Callable[[Any, Batch], Sums]
    metrics: Sequence[str]
    measures: Sequence[Metric]


def make_objective(
    config: TrainConfig,
    *,
    target: Tensor | None = None,
    num_classes: int = 0,
    class_counts: np.ndarray | None = None,
    loss: Any = None,
    metrics: Mapping[str, Any] | None = None,
) -> Objective:
    """class_counts: training samples of each class, where they are known.
    target: of some samples, (n, …); None where there is none, which is taken for classes.

    loss, metrics: a user's functions of (output, target), instead of `train.loss`, or beside its own metrics; a
    metric may also be a `Metric`.
    """
    given = dict(metrics or {})
    own = {name: metric for name, metric in given.items() if not isinstance(metric, Metric)}
    task = task_of(config.loss, target, num_classes)
    outputs = num_outputs(task, target, num_classes)
    measures = functools.partial(
        _measures, config, task=task, num_outputs=outputs, target=target, given=given
    )
    if loss is not None:
        _check_unweighted(config, "the loss that was given")
        return Objective(
            task=task,
            num_outputs=outputs,
            loss=from_functions(loss, own),
            metrics=list(own),
            measures=measures(metrics=list(own), auto=False),
        )
    name = config.loss if config.loss != "auto" and task != "tokens" else _AUTO[task]
    _check(config, name, target)
    weights = class_weights(config.class_weights, outputs, class_counts)
    sums = (
        LOSSES[name](config) if weights is None else classification(config.label_smoothing, weights)
    )
    names = [*_STEP_METRICS[task], *own]
    return Objective(
        task=task,
        num_outputs=outputs,
        loss=with_functions(sums, own) if own else sums,
        metrics=names,
        measures=measures(metrics=names, auto=True),
    )


def extended(
    spec: ModelSpec,
    config: TrainConfig,
    *,
    target: Tensor | None,
    num_classes: int,
    loss: Any,
    metrics: Mapping[str, Any] | None,
) -> ModelSpec:
    """A user's ModelSpec with the metrics that were asked for besides; its loss is its own."""
    if loss is not None:
        raise UserError(
            "loss= was given, and the ModelSpec has a loss of its own",
            "put the loss into the ModelSpec",
        )
    _check_unweighted(config, "the loss of the ModelSpec")
    given = dict(metrics or {})
    own = {name: metric for name, metric in given.items() if not isinstance(metric, Metric)}
    task = task_of(config.loss, target, num_classes)
    extra = _measures(
        config,
        task=task,
        num_outputs=num_outputs(task, target, num_classes),
        target=target,
        given=given,
        metrics=[*spec.numbers, *own],
        auto=False,
    )
    return dataclasses.replace(
        spec,
        loss=with_functions(spec.loss, own) if own else spec.loss,
        metrics=[*spec.metrics, *own],
        measures=[*spec.measures, *extra],
    )


_AUTO = {
    "classification": "cross-entropy",
    "multi-label": "bce",
    "regression": "mse",
    "tokens": "next-token",
}
_STEP_METRICS = {
    "classification": ["accuracy"],
    "multi-label": ["label_accuracy"],
    "regression": ["mae"],
    "tokens": ["token_accuracy"],
}


def task_of(loss: str, target: Tensor | None, num_classes: int) -> Task:
    """What the samples are labelled with; a loss that is named decides where several would fit."""
    if loss in ERRORS:
        return "regression"
    whole = target is None or not target.is_floating_point()
    if loss == "cross-entropy" or whole:
        sequences = target is not None and target.ndim == 2 and loss in ("auto", "cross-entropy")
        return "tokens" if sequences and num_classes else "classification"
    assert target is not None, "what is not whole is there"
    if loss == "bce" or (num_classes and tuple(target.shape[1:]) == (num_classes,)):
        return "multi-label"
    return "regression"


def num_outputs(task: Task, target: Tensor | None, num_classes: int) -> int:
    if task in ("classification", "tokens") or target is None:
        return num_classes
    return target[0].numel()


def _measures(
    config: TrainConfig,
    *,
    task: Task,
    num_outputs: int,
    target: Tensor | None,
    given: Mapping[str, Any],
    metrics: Sequence[str],
    auto: bool,
) -> list[Metric]:
    """Those that are named, or suit the task where none are, without what the steps measure; and the user's."""
    names = config.metrics or (auto_names(task, num_outputs) if auto else [])
    origin = None if target is None else target[0]
    found = make_metrics([name for name in names if name not in metrics], task, origin)
    for name, metric in given.items():
        if isinstance(metric, Metric):
            found.append(metric if metric.numbers else dataclasses.replace(metric, numbers=[name]))
    numbers = [*metrics, *(number for metric in found for number in metric.numbers)]
    for number in numbers:
        if numbers.count(number) > 1:
            raise UserError(
                f"two metrics are called {number!r}",
                "give one of them another name, or leave it out",
            )
    return found


def _check_unweighted(config: TrainConfig, loss: str) -> None:
    if config.class_weights != "none":
        raise UserError(
            f"train.class_weights has no effect on {loss}",
            'set it to "none", and weight the samples in your own loss',
        )


def _check(config: TrainConfig, name: str, target: Tensor | None) -> None:
    if config.label_smoothing and name in ERRORS:
        raise UserError(
            f"train.label_smoothing = {config.label_smoothing:g} has no meaning for the loss {name}",
            "set it to 0, or train.loss to cross-entropy or bce",
        )
    if name != "cross-entropy":
        _check_unweighted(config, f"the loss {name}, whose samples have no class each")
    numbers = target is not None and target.is_floating_point() and target.ndim == 1
    if name == "cross-entropy" and numbers:
        raise UserError(
            'train.loss = "cross-entropy" needs classes, and the targets are numbers with a fraction',
            'give int64 targets, or set train.loss to "mse", "l1" or "huber"',
        )
