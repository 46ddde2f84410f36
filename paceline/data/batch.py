"""What a model is fed: a pytree of tensors with the samples' indices and weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree


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

    def pin(self) -> Batch:
        return self.map(Tensor.pin_memory)


def map_leaves(function: Callable[[Any], Any], data: Any) -> Any:
    """`data` with every leaf replaced. A dict of arrays, which most batches are, costs a tenth of pytree's time."""
    if type(data) is dict and all(isinstance(leaf, (Tensor, np.ndarray)) for leaf in data.values()):
        return {name: function(leaf) for name, leaf in data.items()}
    return pytree.tree_map(function, data)
