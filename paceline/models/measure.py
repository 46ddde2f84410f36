"""`Metric`: a measure of a model as sums that add exactly over batches and ranks, and what is computed from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.data.batch import Batch
from paceline.errors import UserError

Computed = Mapping[str, "float | np.ndarray"] | float
_MARK = "measure"  # keeps these sums apart from the loss's own


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A measure that only evaluations take.

    sums: of the module's output and the batch, tensors that add; a row of weight 0 must not count. The same function
    in several metrics is called once.
    compute: from the sums over all samples, float64 arrays, to the numbers, by name, and to arrays for reports; one
    number may be given alone.
    numbers: the names of those numbers; empty: the one name that it was given under.
    smaller: whether a smaller value is better.
    """

    sums: Callable[[Any, Batch], Mapping[str, Tensor]]
    compute: Callable[[Mapping[str, np.ndarray]], Computed]
    numbers: Sequence[str] = ()
    smaller: bool = False


@torch.no_grad()
def measure_sums(metrics: Sequence[Metric], output: Any, batch: Batch) -> dict[str, Tensor]:
    """The sums of all metrics in float64, under names of their own."""
    return {
        f"{_MARK}/{number}/{name}": value.to(torch.float64)
        for number, function in enumerate(_functions(metrics))
        for name, value in function(output, batch).items()
    }


def compute_metrics(
    metrics: Sequence[Metric], sums: Mapping[str, np.ndarray]
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """(numbers, arrays) from the sums over all samples, as `measure_sums` names them."""
    numbers: dict[str, float] = {}
    arrays: dict[str, np.ndarray] = {}
    places = {id(function): number for number, function in enumerate(_functions(metrics))}
    for metric in metrics:
        prefix = f"{_MARK}/{places[id(metric.sums)]}/"
        own = {n.removeprefix(prefix): v for n, v in sums.items() if n.startswith(prefix)}
        with np.errstate(divide="ignore", invalid="ignore"):
            found = metric.compute(own)
        if not isinstance(found, Mapping):
            found = {metric.numbers[0]: found}
        for name in metric.numbers:
            numbers[name] = _number(name, found)
        arrays |= {n: np.asarray(v) for n, v in found.items() if n not in metric.numbers}
    return numbers, arrays


def is_measure(name: str) -> bool:
    return name.startswith(f"{_MARK}/")


def _functions(metrics: Sequence[Metric]) -> list[Callable[[Any, Batch], Mapping[str, Tensor]]]:
    return list({id(metric.sums): metric.sums for metric in metrics}.values())


def _number(name: str, found: Mapping[str, Any]) -> float:
    value = found.get(name, math.nan if name in found else None)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        told = "nothing" if value is None else f"a {type(value).__name__}"
        raise UserError(
            f"the metric {name!r} was computed to {told}",
            "let compute return a number, or a mapping that has one under this name",
        ) from error
