"""`dp`: one process for all devices, by nn.DataParallel; on the CPU the same data flow, for its semantics alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from paceline.config.schema import ParallelConfig, RunConfig
from paceline.models.spec import ModelSpec
from paceline.parallel.contract import Carried
from paceline.parallel.place import Place
from paceline.parallel.whole import WholeModel, build_module
from paceline.parallel.world import World
from paceline.records.phases import PhaseClock

ON_CPU = "dp on the CPU runs its replicas one after another: it shows what dp computes, and nothing of its speed"


class DP:
    def place(self, config: ParallelConfig, num_devices: int, rank: int) -> Place:
        return Place(
            num_processes=1, devices_per_process=num_devices, data_rank=0, num_data_ranks=1
        )

    def carry(self, spec: ModelSpec, config: RunConfig, world: World, clock: PhaseClock) -> Carried:
        return CarriedDP(spec, config, world, clock)


class CarriedDP(WholeModel):
    def __init__(self, spec: ModelSpec, config: RunConfig, world: World, clock: PhaseClock) -> None:
        module = build_module(spec, config, world.device)
        num = config.parallel.ranks
        place = DP().place(config.parallel, num, 0)
        on_gpus = world.device.type == "cuda"
        devices = [torch.device("cuda", i) for i in range(num)] if on_gpus else [world.device]
        super().__init__(module, spec, config, place, devices, clock)
        self.forward = (
            nn.DataParallel(module, list(range(num))) if on_gpus else DataParallelOnCPU(module, num)
        )

    def notes(self) -> Sequence[str]:
        on_cpu = [] if self.devices[0].type == "cuda" else [ON_CPU]
        return [*super().notes(), *on_cpu]


class DataParallelOnCPU:
    """The data flow of nn.DataParallel without GPUs (there nn.DataParallel silently passes through).

    Scatters inputs by their first dimension, replicates the module with differentiable copies of its parameters, so
    that gradients add up in the originals, applies each replica to its part and gathers the outputs. As there,
    replica 0 shares the module's buffers and what the others do to theirs is lost.
    """

    def __init__(self, module: nn.Module, num_replicas: int) -> None:
        self._module = module
        self._num_replicas = num_replicas

    def __call__(self, *inputs: Tensor) -> Any:
        parts = list(zip(*(tensor.chunk(self._num_replicas) for tensor in inputs), strict=True))
        outputs = [_replicate(self._module, i)(*part) for i, part in enumerate(parts)]
        return pytree.tree_map(lambda *leaves: torch.cat(leaves), *outputs)


def _replicate(
    module: nn.Module, index: int, seen: dict[int, nn.Module] | None = None
) -> nn.Module:
    """A copy of a module tree whose parameters are differentiable copies; shared submodules stay shared."""
    seen = {} if seen is None else seen
    if id(module) in seen:
        return seen[id(module)]
    replica = module._replicate_for_data_parallel()
    seen[id(module)] = replica
    for name, child in module._modules.items():
        replica._modules[name] = None if child is None else _replicate(child, index, seen)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            setattr(replica, name, parameter.clone())
    for name, buffer in module._buffers.items():
        if buffer is not None:
            replica._buffers[name] = buffer if index == 0 else buffer.clone()
    return replica
