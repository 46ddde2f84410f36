"""Where a rank stands, as plain arithmetic that is known before anything is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.errors import UserError


@dataclass(frozen=True)
class Place:
    """A process's part of the work.

    data_rank, num_data_ranks: whose share of a global batch it takes; this is all that `data` hears of.
    needs_input, has_output: whether it feeds the model, whether it sees the loss (pipelines: not every rank does).
    """

    num_processes: int
    devices_per_process: int
    data_rank: int
    num_data_ranks: int
    needs_input: bool = True
    has_output: bool = True


@dataclass(frozen=True)
class Split:
    """How a full global batch is carried out: rows of a forward pass in one process, and passes a step."""

    rows: int
    accumulation: int


def split_batch(global_batch: int, micro_batch: Literal["auto"] | int, place: Place) -> Split:
    """Cuts a global batch into equal micro-batches over all devices.

    micro_batch: samples a device in one forward pass; 0, and auto before it is found: everything in one pass.
    """
    devices = place.num_data_ranks * place.devices_per_process
    if global_batch % devices:
        below = global_batch // devices * devices
        sizes = [str(size) for size in (below, below + devices) if size > 0]
        ranks = [str(n) for n in range(1, devices) if global_batch % n == 0][-2:]
        raise UserError(
            f"global_batch = {global_batch} cannot be split over {devices} ranks",
            f"use {' or '.join(sizes)}, or start {' or '.join(ranks)} rank{'s' * (ranks != ['1'])}",
        )
    share = global_batch // devices
    each = share if micro_batch in (0, "auto") else int(micro_batch)
    if share % each:
        divisors = [n for n in range(1, share + 1) if share % n == 0]
        nearest = sorted(sorted(divisors, key=lambda n: abs(n - each))[:2])
        raise UserError(
            f"parallel.micro_batch = {each} does not divide a device's share of {share} samples"
            f" (global_batch = {global_batch} over {devices})",
            f"use {' or '.join(map(str, nearest))}",
        )
    return Split(rows=each * place.devices_per_process, accumulation=share // each)
