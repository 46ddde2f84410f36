"""Which part of a tensor a rank holds and which rank writes it; touches no file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_RANK_NAME = re.compile(r"rank-([0-9]+)/")


@dataclass(frozen=True)
class Part:
    """A rank's part of a tensor: the box of `sizes` at `offsets`.

    first: of the part's copies on several ranks, this is the one to be written.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    local: Tensor
    first: bool


def rank_of_name(name: str) -> int | None:
    """The rank that a tensor belongs to by its name `rank-N/...`; None: all ranks have it."""
    match = _RANK_NAME.match(name)
    return int(match[1]) if match else None


def part_of(name: str, tensor: Tensor, rank: int) -> Part:
    """What this rank holds of a tensor; of a plain one all, and rank 0 writes it."""
    if tensor.layout != torch.strided:
        raise ValueError(
            f"tensor {name!r} has the layout {tensor.layout}; only dense tensors can be saved"
        )
    owner = rank_of_name(name)
    if owner is not None and owner != rank:
        raise ValueError(
            f"tensor {name!r} was given to rank {rank}, but belongs to rank {owner} by its name"
        )
    if hasattr(
        tensor, "placements"
    ):  # importing DTensor costs a second, so it is known by its attribute
        if owner is not None:
            raise ValueError(f"tensor {name!r} belongs to one rank by its name, but is a DTensor")
        return _sharded_part(name, tensor)
    shape = tuple(tensor.shape)
    return Part(shape, (0,) * len(shape), shape, tensor.detach(), first=rank == (owner or 0))


def local_slices(tensor: DTensor) -> tuple[slice, ...]:
    """The slices of the whole tensor that this rank holds, for `Checkpoint.read(name, slices)`."""
    part = _sharded_part("", tensor)
    return tuple(
        slice(start, start + size) for start, size in zip(part.offsets, part.sizes, strict=True)
    )


def _sharded_part(name: str, tensor: Any) -> Part:
    from torch.distributed.tensor import Replicate, Shard

    shape = tuple(tensor.shape)
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    offsets, sizes, first = [0] * len(shape), list(shape), True
    local = tensor.detach().to_local()
    if coordinate is None:  # this rank is not in the tensor's mesh
        return Part(shape, tuple(offsets), (0,) * len(shape), local, first=False)
    for axis, placement in enumerate(tensor.placements):
        if type(placement) is Shard:
            dim = placement.dim
            chunk = -(-sizes[dim] // mesh.size(axis))  # as torch.chunk splits
            start = min(coordinate[axis] * chunk, sizes[dim])
            offsets[dim] += start
            sizes[dim] = min(chunk, sizes[dim] - start)
        elif type(placement) is Replicate:
            first = first and coordinate[axis] == 0
        else:
            raise ValueError(
                f"tensor {name!r} is placed as {placement}; only Shard and Replicate can be saved"
            )
    assert tuple(local.shape) == tuple(sizes), (
        f"{name}: local shape {tuple(local.shape)}, expected {sizes}"
    )
    return Part(shape, tuple(offsets), tuple(sizes), local, first)
