"""BatchNorm's running statistics: they move once an optimizer step, by the mean over all of its micro-batches.

A micro-batch is the statistics group: its samples are normalised together. Each group starts from the statistics at
the start of the step and their results are averaged, weighted by samples, over micro-batches and ranks. So one
process with two micro-batches and two ranks with one agree exactly, and all ranks hold the same buffers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.data.batch import Batch


class RunningStatistics:
    def __init__(self, module: nn.Module, num_ranks: int) -> None:
        self._norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]
        tracking = [m for m in self._norms if m.track_running_stats and m.running_mean is not None]
        self._buffers: list[Tensor] = []
        for norm in tracking:
            assert norm.running_mean is not None and norm.running_var is not None
            self._buffers += [norm.running_mean, norm.running_var]
        self._counters = [
            m.num_batches_tracked for m in tracking if m.num_batches_tracked is not None
        ]
        self._num_ranks = num_ranks
        self._active = False
        self._start: list[Tensor] = []
        self._mean: list[Tensor] = []

    def begin(self, num_micro_batches: int) -> None:
        """Before the first micro-batch of a step."""
        self._active = bool(self._buffers) and (num_micro_batches > 1 or self._num_ranks > 1)
        if self._active:
            self._start = [t.clone() for t in (*self._buffers, *self._counters)]
            self._mean = [torch.zeros_like(t) for t in self._buffers]

    def forward(self, batch: Batch) -> AbstractContextManager[None]:
        """Around one micro-batch's forward pass.

        A micro-batch of one row, or with no real sample, is normalised with the running statistics: one value has
        no variance, and a filler row must not be seen in them.
        """
        alone = bool(self._norms) and (len(batch) == 1 or batch.num_real == 0)
        return _in_evaluation(self._norms) if alone else contextlib.nullcontext()

    def add(self, batch: Batch, count: Tensor) -> None:
        """After one micro-batch's backward pass, which still reads the buffers.

        count: 0-d, real samples of the global batch.
        """
        if not self._active:
            return
        for mean, buffer in zip(self._mean, self._buffers, strict=True):
            mean.add_(buffer * batch.num_real / count)
        torch._foreach_copy_([*self._buffers, *self._counters], self._start)

    def finish(self) -> None:
        """After the last micro-batch: every rank gets the mean."""
        if not self._active:
            return
        if self._num_ranks > 1:
            flat = torch.cat([m.flatten() for m in self._mean])
            dist.all_reduce(flat)
            parts = flat.split([m.numel() for m in self._mean])
            self._mean = [p.view_as(m) for p, m in zip(parts, self._mean, strict=True)]
        torch._foreach_copy_(self._buffers, self._mean)
        if self._counters:
            torch._foreach_add_(self._counters, 1)

    def restore(self) -> None:
        """Back to where `begin` found them, for a pass that is thrown away."""
        if self._active:
            torch._foreach_copy_([*self._buffers, *self._counters], self._start)


@contextlib.contextmanager
def _in_evaluation(norms: list[_BatchNorm]) -> Iterator[None]:
    training = [norm.training for norm in norms]
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm, was in zip(norms, training, strict=True):
            norm.train(was)
