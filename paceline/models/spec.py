"""`ModelSpec`: what the core knows of a model, as a record of callables; and `Sums`, what a loss returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from paceline.data.batch import Batch
from paceline.models.blocks import find_head
from paceline.models.measure import Metric, measure_sums

Output = Any  # what the module's forward returns: a tensor or a pytree of tensors


@dataclass(frozen=True)
class Sums:
    """Sums over samples, so that parts of a batch add up exactly.

    loss: 0-d, sum of weight x loss. count: 0-d, sum of weights. metrics: 0-d sums of weight x metric, by name;
    a mean is `metrics[name] / count`. measures: what the evaluation's metrics add up, of any shape; empty in
    training, and where there was no sample. All on the device of the output.
    """

    loss: Tensor
    count: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    measures: Mapping[str, Tensor] = field(default_factory=dict)

    def __add__(self, other: Sums) -> Sums:
        metrics = {name: value + other.metrics[name] for name, value in self.metrics.items()}
        measures = {**self.measures, **other.measures}
        for name in self.measures.keys() & other.measures.keys():
            measures[name] = self.measures[name] + other.measures[name]
        return Sums(self.loss + other.loss, self.count + other.count, metrics, measures)

    @staticmethod
    def zeros(metrics: Sequence[str], device: torch.device) -> Sums:
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return Sums(zero, zero, dict.fromkeys(metrics, zero))

    def detach(self) -> Sums:
        metrics = {name: value.detach() for name, value in self.metrics.items()}
        return Sums(self.loss.detach(), self.count.detach(), metrics)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model as the core sees it; a new model is one of these and a registry line.

    build: makes the module, initialized from torch's global generator (which the caller has seeded).
    initialize: sets the weights of a module built without them; None: `build` already does.
    metrics: names of the sums that `loss` returns besides the loss. measures: what evaluations measure besides.
    task: what outputs and targets are, for reports: classification, multi-label, regression; "" where nobody knows.
    inputs: a batch's positional arguments for the module.
    loss: of the module's output and the batch; differentiable in `Sums.loss`.
    blocks: names of the submodules that sharding, recomputation and compilation take as units, in their order.
    head: names of the modules that depend on the classes: what a linear probe trains and other weights may lack.
    pretrained: fetches the state that `model.pretrained` asks for; None where it asks for none.
    """

    build: Callable[[], nn.Module]
    metrics: Sequence[str]
    inputs: Callable[[Batch], tuple[Tensor, ...]]
    loss: Callable[[Output, Batch], Sums]
    blocks: Callable[[nn.Module], Sequence[str]] = lambda module: []
    head: Callable[[nn.Module], Sequence[str]] = find_head
    initialize: Callable[[nn.Module], None] | None = None
    task: str = ""
    pretrained: Callable[[], Mapping[str, Tensor]] | None = None
    measures: Sequence[Metric] = ()

    @property
    def numbers(self) -> list[str]:
        """The names of all that an evaluation tells besides the loss."""
        return [*self.metrics, *(name for metric in self.measures for name in metric.numbers)]

    def judge(self, output: Output, batch: Batch) -> Sums:
        """The loss's sums with those of the measures: what an evaluation adds up."""
        sums = self.loss(output, batch)
        if not self.measures:
            return sums
        measures = measure_sums(self.measures, output, batch)
        return Sums(sums.loss, sums.count, sums.metrics, measures)
