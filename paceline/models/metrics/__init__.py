"""Metrics by name and task, each as sums that add exactly. A new one is a line in its task's file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from torch import Tensor

from paceline.errors import UserError, nearest
from paceline.models.measure import Metric, compute_metrics, is_measure, measure_sums
from paceline.models.metrics import classification, multilabel, regression, tokens

__all__ = [
    "Metric",
    "auto_names",
    "compute_metrics",
    "is_measure",
    "known",
    "make_metrics",
    "measure_sums",
    "report_metrics",
]

TASKS = ("classification", "multi-label", "regression", "tokens")
SMALLER = frozenset({"mae", "rmse", "ece", "perplexity"})  # is better, among the named ones
_TOP = re.compile(r"top([1-9][0-9]{0,3})")
_MANY_CLASSES = 20  # from here on, top-5 says something
_MOST_CONFUSED = 2048  # classes of which a whole confusion matrix is kept: 32 MiB

_REPORTS = {"classification": classification.REPORTS, "multi-label": multilabel.REPORTS}

Makers = dict[str, tuple[str, Callable[[], Metric]]]


def known(task: str, origin: Tensor | None = None) -> Makers:
    """What there is for a task: (description, maker) by name. origin: see `regression.error_sums`."""
    if task == "regression":
        return regression.metrics(origin)
    makers = {"multi-label": multilabel.MAKERS, "tokens": tokens.MAKERS}
    return makers.get(task, classification.MAKERS)


def auto_names(task: str, num_outputs: int) -> list[str]:
    """What evaluations measure where nobody says."""
    if task == "regression":
        return ["mae", "rmse", "r2"]
    if task == "multi-label":
        return ["label_accuracy", "map", "f1"]
    if task == "tokens":
        return ["perplexity"]
    return ["accuracy", "top5"] if num_outputs >= _MANY_CLASSES else ["accuracy"]


def make_metrics(names: Sequence[str], task: str, origin: Tensor | None = None) -> list[Metric]:
    """The metrics of those names. Raises UserError for one that is unknown, or of another task."""
    makers = known(task, origin)
    return [_make(name, makers, task) for name in dict.fromkeys(names)]


def _make(name: str, makers: Makers, task: str) -> Metric:
    if name in makers:
        return makers[name][1]()
    if name in _REPORTS.get(task, {}):
        return _REPORTS[task][name]()
    top = _TOP.fullmatch(name)
    if top and task == "classification":
        return classification.top(int(top[1]))
    fits = [other for other in TASKS if name in known(other) or name in _REPORTS.get(other, {})]
    if top or fits:
        raise UserError(
            f"train.metrics: {name!r} is a metric of {' and '.join(fits) or 'classification'}, "
            f"and this is {task}",
            f"for {task} there are {', '.join(makers)}",
        )
    every = [*dict.fromkeys(n for other in TASKS for n in known(other)), "top5"]
    every += classification.REPORTS
    raise UserError(f"train.metrics: there is no metric {name!r}", nearest(name, every))


def report_metrics(task: str, num_outputs: int, origin: Tensor | None = None) -> list[Metric]:
    """Everything there is to say of a task: what `paceline evaluate` measures."""
    found = [make() for _, make in known(task, origin).values()]
    if task == "classification" and num_outputs > 5:
        found.append(classification.top(5))
    for name, make in _REPORTS.get(task, {}).items():
        if name != "confusion" or num_outputs <= _MOST_CONFUSED:
            found.append(make())
    return found
