"""What a model is fed: a pytree of tensors with the samples' indices and weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from paceline.data.order import step_chunks


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    data: a pytree whose tensors have the sample as first dimension; by convention a dict with `input` and `target`.
    indices: (n,) int64 on the CPU, the samples' indices in their source; a filler row has the index -1.
    weights: (n,) float32, 1 for a real sample, 0 for one that was skipped or only fills a row.
    num_real: how many weights are not 0; known without asking the device.
    """

    data: Any
    indices: Tensor
    weights: Tensor
    num_real: int

    def __len__(self) -> int:
        return len(self.indices)

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with `function` applied to the data and the weights (not to the indices)."""
        data = map_leaves(
            lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, self.data
        )
        return Batch(data, self.indices, function(self.weights), self.num_real)

    def to(self, device: torch.device) -> Batch:
        return self.map(lambda t: t.to(device, non_blocking=True))

    def cut(self, rows: int) -> list[Batch]:
        """The same samples as batches of `rows`, in order and without a copy; the batch itself where it is as small.

        As where the epoch is cut (`order.step_chunks`), a remainder of one sample joins the batch before it.
        """
        num = len(self)
        if num <= rows:
            return [self]
        return [self._part(chunk) for chunk in step_chunks(0, num, num, rows)]

    def _part(self, rows: range) -> Batch:
        def part(leaf: Any) -> Any:
            return leaf[rows.start : rows.stop] if isinstance(leaf, (Tensor, np.ndarray)) else leaf

        weights = part(self.weights)
        is_full = self.num_real == len(
            self
        )  # else the weights say it, which may wait for the device
        num_real = len(rows) if is_full else int(torch.count_nonzero(weights))
        return Batch(map_leaves(part, self.data), part(self.indices), weights, num_real)

    def pin(self) -> Batch:
        return self.map(Tensor.pin_memory)


def map_leaves(function: Callable[[Any], Any], data: Any) -> Any:
    """`data` with every leaf replaced. A dict of arrays, which most batches are, costs a tenth of pytree's time."""
    if type(data) is dict and all(isinstance(leaf, (Tensor, np.ndarray)) for leaf in data.values()):
        return {name: function(leaf) for name, leaf in data.items()}
    return pytree.tree_map(function, data)
