"""BatchNorm's running statistics: they move once an optimizer step, by the mean over all of its micro-batches.

A micro-batch is the statistics group: its samples are normalised together. Each group starts from the statistics at
the start of the step and their results are averaged, weighted by samples, over micro-batches and ranks. So one
process with two micro-batches and two ranks with one agree exactly, and all ranks hold the same buffers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.data.batch import Batch


class RunningStatistics:
    """frozen: all of them normalize with their running statistics, which stay as they are.

    can_go_back: also a step of one pass in one process can be given up.
    """

    def __init__(
        self,
        module: nn.Module,
        num_ranks: int,
        *,
        frozen: bool = False,
        can_go_back: bool = False,
    ) -> None:
        self._frozen = frozen
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
        self._can_go_back = can_go_back
        self._active = False
        self._start = [torch.empty_like(t) for t in (*self._buffers, *self._counters)]
        self._flat, self._sums = _flat_zeros(self._buffers)
        self._exchange: dist.Work | None = None

    def has(self, buffer: Tensor) -> bool:
        """Whether this is one of the buffers that are kept equal here."""
        return any(buffer is own for own in (*self._buffers, *self._counters))

    def begin(self, num_micro_batches: int) -> None:
        """Before the first micro-batch of a step."""
        several = num_micro_batches > 1 or self._num_ranks > 1 or self._can_go_back
        self._active = bool(self._buffers) and several and not self._frozen
        if self._active:
            torch._foreach_copy_(self._start, [*self._buffers, *self._counters])
            self._flat.zero_()

    def forward(self, batch: Batch) -> AbstractContextManager[None]:
        """Around one micro-batch's forward pass.

        A micro-batch of one row, or with no real sample, is normalised with the running statistics: one value has
        no variance, and a filler row must not be seen in them.
        """
        alone = len(batch) == 1 or batch.num_real == 0
        fixed = bool(self._norms) and (alone or self._frozen)
        return _in_evaluation(self._norms) if fixed else contextlib.nullcontext()

    def add(self, batch: Batch, *, last: bool) -> None:
        """After one micro-batch's forward pass. The last starts the exchange, which backward then hides."""
        if not self._active:
            return
        torch._foreach_add_(self._sums, self._buffers, alpha=batch.num_real)
        if last:
            self.send()

    def send(self) -> None:
        """Starts this step's exchange of statistics, where there is one and it is not under way."""
        if self._active and self._num_ranks > 1 and self._exchange is None:
            self._exchange = dist.all_reduce(self._flat, async_op=True)

    def put_back(self) -> None:
        """After one micro-batch's backward pass, which still reads the buffers."""
        if self._active:
            torch._foreach_copy_([*self._buffers, *self._counters], self._start)

    def finish(self, count: Tensor) -> None:
        """After the last micro-batch: every rank gets the mean. count: 0-d, real samples of the global batch."""
        if not self._active:
            return
        self._receive()
        self._flat.div_(count)
        torch._foreach_copy_(self._buffers, self._sums)
        if self._counters:
            torch._foreach_add_(self._counters, 1)
        self._active = False

    def abandon(self) -> None:
        """Instead of `finish`, after every rank has sent: the step has not happened."""
        self._receive()
        self.put_back()
        self._active = False

    def _receive(self) -> None:
        if self._exchange is not None:
            self._exchange.wait()
            self._exchange = None


def has_groups(module: nn.Module) -> bool:
    """Whether samples that go through the model together are normalised together."""
    return any(isinstance(m, _BatchNorm) and m.training for m in module.modules())


def _flat_zeros(tensors: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """One tensor of zeros, to be exchanged at once, and its parts as views shaped like `tensors`."""
    if not tensors:
        return torch.zeros(0), []
    dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors), torch.float32)
    flat = torch.zeros(sum(t.numel() for t in tensors), dtype=dtype, device=tensors[0].device)
    parts = flat.split([t.numel() for t in tensors])
    return flat, [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]


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
