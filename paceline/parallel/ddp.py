"""`ddp`: a replica a rank, gradients summed over ranks by DistributedDataParallel while backward still runs."""

import contextlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from paceline.config.schema import ParallelConfig, RunConfig
from paceline.data.batch import Batch
from paceline.data.generators import generators_kept
from paceline.errors import UserError
from paceline.models.spec import ModelSpec, Sums
from paceline.parallel.contract import Carried
from paceline.parallel.memory import free_memory
from paceline.parallel.place import Place
from paceline.parallel.whole import WholeModel, build_module
from paceline.parallel.world import World
from paceline.records.phases import PhaseClock


class DDP:
    def place(self, config: ParallelConfig, num_devices: int, rank: int) -> Place:
        return Place(
            num_processes=num_devices,
            devices_per_process=1,
            data_rank=rank,
            num_data_ranks=num_devices,
        )

    def carry(self, spec: ModelSpec, config: RunConfig, world: World, clock: PhaseClock) -> Carried:
        return CarriedDDP(
            spec, config, world, self.place(config.parallel, world.num_ranks, world.rank), clock
        )


class CarriedDDP(WholeModel):
    def __init__(
        self, spec: ModelSpec, config: RunConfig, world: World, place: Place, clock: PhaseClock
    ) -> None:
        module = build_module(spec, config, world.device)
        super().__init__(module, spec, config, place, [world.device], clock)
        self._world = world
        self._wrapped: Any = None  # a DistributedDataParallel from the first epoch on
        self._buckets_settled = False
        self._stateful: list[str] = []

    def begin_epoch(self, epoch: int) -> None:
        """DDP exchanges what was trained when it was made, so where that changes it is made anew."""
        changed = self.freezing.begin_epoch(epoch)
        if changed or self._wrapped is None:
            self._wrap()

    def _wrap(self) -> None:
        if self._wrapped is not None:
            self.module.zero_grad(
                set_to_none=True
            )  # gradients are views into the old one's buckets
            self.forward, self.skip_exchange = self.module, contextlib.nullcontext
            self._wrapped = None
            free_memory()  # it takes its hooks off the parameters when it goes, and lies in cycles
        device = self._world.device
        self._wrapped = DistributedDataParallel(
            self.module,
            device_ids=[device] if device.type == "cuda" else None,
            bucket_cap_mb=self.config.parallel.bucket_mb,
            gradient_as_bucket_view=True,
            **_leave_buffers_alone(),
            find_unused_parameters=self.config.parallel.unused_parameters,
        )
        self._exchange = Exchange(self.clock)
        self._wrapped.register_comm_hook(self._exchange, _sum_over_ranks)
        self.forward = self._wrapped
        self.skip_exchange = self._wrapped.no_sync
        self._buckets_settled = self._world.num_ranks == 1
        self._buckets = self._find_buckets()

    def forward_backward(
        self,
        micro_batches: Sequence[Batch],
        *,
        first: int,
        step: int,
        count: Tensor,
        loss_scale: Tensor | None,
    ) -> Sums:
        if not self._buckets_settled:
            self._settle_buckets(micro_batches[-1], step, count)
        sums = super().forward_backward(
            micro_batches, first=first, step=step, count=count, loss_scale=loss_scale
        )
        for name in self._stateful:  # as DDP does, but only what the model really changes
            dist.broadcast(self.module.get_buffer(name), src=0)
        return sums

    def attempt(self, passes: Callable[[], Sums]) -> Sums:
        self._exchange.sent.clear()
        return super().attempt(passes)

    def join_exchange(self) -> None:
        """The collectives of a step's last pass, in DDP's order, from where this rank left off."""
        if self._world.num_ranks == 1:
            return
        self.statistics.send()
        left = self._buckets[len(self._exchange.sent) :]
        assert left, "after its last bucket, a backward pass allocates nothing"
        for size, dtype in left:
            dist.all_reduce(torch.full((size,), math.nan, dtype=dtype, device=self._world.device))
        for work in self._exchange.sent:
            work.wait()
        if self.config.parallel.unused_parameters:
            dist.all_reduce(self._wrapped.reducer._get_local_used_map())

    def short_ranks(self, is_short: bool) -> list[int]:
        """On a CPU, gradients that are numbers say that no rank was short: a step then has no exchange for this alone.

        On a GPU, looking at gradients would wait for the device, while an exchange between CPUs hides behind it.
        """
        if self._world.device.type == "cpu" and not is_short and self._exchange.ends_in_a_number():
            return []
        return self._world.which(is_short)

    def give_up(self) -> None:
        super().give_up()
        # Where backward broke off, DDP still waits for its end. This also forgets the order of the buckets.
        self._wrapped.reducer._reset_state()
        self._buckets_settled = self._world.num_ranks == 1

    def _find_buckets(self) -> list[tuple[int, torch.dtype]]:
        """Size and dtype of each bucket, in the order in which they are exchanged."""
        if self._world.num_ranks == 1:
            return []
        buckets = self._wrapped.reducer._get_zeros_like_grad_buckets()
        return [(bucket.buffer().numel(), bucket.buffer().dtype) for bucket in buckets]

    def _settle_buckets(self, batch: Batch, step: int, count: Tensor) -> None:
        """One pass of two samples that is thrown away.

        DDP orders its buckets anew after the first backward, and on 3 or more ranks another order is another sum:
        without this pass, a resumed run would not be bit-equal to one that was never interrupted. It leaves no
        trace in the model's buffers (statistics, spectral norm's vectors) and in the generators.
        """
        before = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        self.buffers.keep()
        batch = batch.cut(2)[0]
        with generators_kept():
            self.attempt(
                lambda: self.accumulate([batch], first=0, step=step, count=count, loss_scale=None)
            )
        self._stateful = self._find_stateful()
        self.buffers.learn(self._stateful)
        for name, buffer in self.module.named_buffers():
            buffer.copy_(before[name])
        self._check_unused()
        self.module.zero_grad(set_to_none=True)
        self._wrapped.reducer._rebuild_buckets()  # else in the next forward pass, where ranks would exchange the order
        self._buckets = self._find_buckets()
        self._buckets_settled = True

    def _find_stateful(self) -> list[str]:
        """Buffers that a pass has changed on any rank, besides BatchNorm's, which have their own rule."""
        changed = self.buffers.changed()
        if not changed:
            return []
        anywhere = torch.stack(self._world.gather(torch.tensor(changed))).any(dim=0).tolist()
        return [n for n, is_changed in zip(self.buffers.names, anywhere, strict=True) if is_changed]

    def _check_unused(self) -> None:
        unused = [
            n for n, p in self.module.named_parameters() if p.requires_grad and p.grad is None
        ]
        if unused and not self.config.parallel.unused_parameters:
            more = f" and {len(unused) - 4} more" if len(unused) > 4 else ""
            raise UserError(
                f"these parameters get no gradient: {', '.join(unused[:4])}{more}; ddp would wait for them",
                "set parallel.unused_parameters = true, or requires_grad = False for them",
            )


@dataclass
class Exchange:
    """What the hook below and the strategy tell each other. sent: of this step's last pass; last: its last bucket."""

    clock: PhaseClock
    sent: list[dist.Work] = field(default_factory=list)
    last: Tensor | None = None

    def ends_in_a_number(self) -> bool:
        """Whether the last bucket is free of the mark of a rank that had nothing to add."""
        return self.last is not None and not math.isnan(float(self.last[0]))


def _leave_buffers_alone() -> dict[str, Any]:
    """RunningStatistics keeps BatchNorm's buffers equal. torch 2.14 renamed the flag."""
    known = inspect.signature(DistributedDataParallel).parameters
    return {
        "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False
    }


# DDP reads the annotations of a hook and wants classes, not strings: no `from __future__ import annotations` here.
def _sum_over_ranks(exchange: Exchange, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Sums a bucket. DDP's own exchange would divide by the ranks, which no factor undoes exactly for 3 of them."""
    exchange.clock.last_gradient()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None, "an asynchronous all_reduce returns its handle"
    exchange.sent.append(work)
    exchange.last = bucket.buffer()
    return work.get_future().then(_first)


def _first(future: torch.futures.Future[list[Tensor]]) -> Tensor:
    return future.value()[0]
