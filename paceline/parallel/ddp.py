"""`ddp`: a replica a rank, gradients summed over ranks by DistributedDataParallel while backward still runs."""

import inspect
from collections.abc import Sequence
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
        self._wrapped = DistributedDataParallel(
            module,
            device_ids=[world.device] if world.device.type == "cuda" else None,
            bucket_cap_mb=config.parallel.bucket_mb,
            gradient_as_bucket_view=True,
            **_leave_buffers_alone(),
            find_unused_parameters=config.parallel.unused_parameters,
        )
        self._wrapped.register_comm_hook(clock, _sum_over_ranks)
        self.forward = self._wrapped
        self.skip_exchange = self._wrapped.no_sync
        self._buckets_settled = world.num_ranks == 1
        self._stateful: list[str] = []

    def forward_backward(
        self, micro_batches: Sequence[Batch], *, step: int, count: Tensor, loss_scale: Tensor | None
    ) -> Sums:
        if not self._buckets_settled:
            self._settle_buckets(micro_batches[-1], step, count)
        sums = super().forward_backward(
            micro_batches, step=step, count=count, loss_scale=loss_scale
        )
        for name in self._stateful:  # as DDP does, but only what the model really changes
            dist.broadcast(self.module.get_buffer(name), src=0)
        return sums

    def _find_stateful(self, before: dict[str, Tensor]) -> list[str]:
        """Buffers that a pass has changed on any rank, besides BatchNorm's, which have their own rule."""
        now = dict(self.module.named_buffers())
        others = [name for name in now if not self.statistics.has(now[name])]
        if not others:
            return []
        changed = torch.tensor([not torch.equal(now[name], before[name]) for name in others])
        anywhere = torch.stack(self._world.gather(changed)).any(dim=0).tolist()
        return [name for name, is_changed in zip(others, anywhere, strict=True) if is_changed]

    def _settle_buckets(self, batch: Batch, step: int, count: Tensor) -> None:
        """One pass that is thrown away.

        DDP orders its buckets anew after the first backward, and on 3 or more ranks another order is another sum:
        without this pass, a resumed run would not be bit-equal to one that was never interrupted. It leaves no
        trace in the model's buffers (statistics, spectral norm's vectors) and in the generators.
        """
        before = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        with generators_kept():
            self.accumulate([batch], step=step, count=count, loss_scale=None)
        self._stateful = self._find_stateful(before)
        for name, buffer in self.module.named_buffers():
            buffer.copy_(before[name])
        unused = [
            n for n, p in self.module.named_parameters() if p.requires_grad and p.grad is None
        ]
        if unused and not self.config.parallel.unused_parameters:
            more = f" and {len(unused) - 4} more" if len(unused) > 4 else ""
            raise UserError(
                f"these parameters get no gradient: {', '.join(unused[:4])}{more}; ddp would wait for them",
                "set parallel.unused_parameters = true, or requires_grad = False for them",
            )
        self.module.zero_grad(set_to_none=True)
        self._buckets_settled = True


def _leave_buffers_alone() -> dict[str, Any]:
    """RunningStatistics keeps BatchNorm's buffers equal. torch 2.14 renamed the flag."""
    known = inspect.signature(DistributedDataParallel).parameters
    return {
        "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False
    }


# DDP reads the annotations of a hook and wants classes, not strings: no `from __future__ import annotations` here.
def _sum_over_ranks(clock: PhaseClock, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Sums a bucket. DDP's own exchange would divide by the ranks, which no factor undoes exactly for 3 of them."""
    clock.last_gradient()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None, "an asynchronous all_reduce returns its handle"
    return work.get_future().then(_first)


def _first(future: torch.futures.Future[list[Tensor]]) -> Tensor:
    return future.value()[0]
