"""The exponential moving average of the weights, as name → this rank's local part."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor


class Average:
    """Averaged parameters: average ← decay · average + (1 − decay) · parameter, once an optimizer step.

    The decay rises with the steps, (1 + step) / (10 + step) at most, so that the first weights are soon forgotten.
    Buffers are not averaged: BatchNorm's are averages already.
    """

    def __init__(self, named: Sequence[tuple[str, Tensor]], decay: float) -> None:
        self._names = [name for name, _ in named]
        self._parameters = [parameter.detach() for _, parameter in named]
        self._values = [parameter.clone() for parameter in self._parameters]
        self._decay = decay

    def update(self, step: int) -> None:
        """After optimizer step `step`, counted from 0."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._values, self._parameters, 1.0 - decay)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        kept = [parameter.clone() for parameter in self._parameters]
        torch._foreach_copy_(self._parameters, self._values)
        try:
            yield
        finally:
            torch._foreach_copy_(self._parameters, kept)

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"average/{name}": value for name, value in zip(self._names, self._values, strict=True)
        }

    def load_tensors(self, values: Mapping[str, Tensor]) -> None:
        """Takes saved averages; from a checkpoint without them the average starts at its weights."""
        if not any(name.startswith("average/") for name in values):
            torch._foreach_copy_(self._values, self._parameters)
            return
        for name, tensor in self.tensors().items():
            tensor.copy_(values[name])
