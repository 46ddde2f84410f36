"""The ranks of a run and how they talk; who this process is among them, `launched.py` reads.

Three process groups: the default one for gradients (NCCL on GPUs, gloo on CPUs), `control` for small decisions on
the CPU, and `saving` for the checkpoint store's background thread, which must never share a group with training.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from paceline.errors import UserError
from paceline.parallel.launched import Launched, launched

_MEETING_TIMEOUT_S = 300
_LONGEST_PAUSE_S = 0.5  # between two looks at the store

Made = TypeVar("Made")


@dataclass(frozen=True)
class World:
    """This process among all ranks. Alone, without groups, every method is the identity."""

    rank: int = 0
    local_rank: int = 0
    num_ranks: int = 1
    local_num_ranks: int = 1
    attempt: int = 0
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    control: dist.ProcessGroup | None = None
    saving: dist.ProcessGroup | None = None

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank. The value is pickled; ranks of one run trust each other."""
        if self.control is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's CPU tensor of one shape and dtype, in rank order, on every rank."""
        if self.control is None:
            return [value]
        parts = [torch.empty_like(value) for _ in range(self.num_ranks)]
        dist.all_gather(parts, value, group=self.control)
        return parts

    def sum_named(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The sums over ranks of CPU tensors in float64, by name; a rank may lack some. Equal on every rank."""
        if self.control is None:
            return dict(values)
        layouts: list[dict[str, torch.Size]] = [{} for _ in range(self.num_ranks)]
        dist.all_gather_object(layouts, {n: v.shape for n, v in values.items()}, group=self.control)
        layout = {name: shape for known in layouts for name, shape in known.items()}
        zero = torch.zeros((), dtype=torch.float64)
        parts = [values.get(name, zero.expand(layout[name])).flatten() for name in sorted(layout)]
        total = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
        dist.all_reduce(total, group=self.control)
        cut = total.split([layout[name].numel() for name in sorted(layout)])
        return {n: v.view(layout[n]) for n, v in zip(sorted(layout), cut, strict=True)}

    def sum_count(self, count: int) -> int:
        """The sum of a count over ranks, agreed on the CPU."""
        if self.control is None:
            return count
        total = torch.tensor([count], dtype=torch.int64)
        dist.all_reduce(total, group=self.control)
        return int(total)

    def first_on_machine(self, name: str, make: Callable[[], Made]) -> Made:
        """`make()` on every rank, on one of each machine before its others; returns when all ranks are done.

        Ranks wait by looking at the store, for as long as it takes: what is made may be a download of hours, and the
        time-out of an exchange would end the run in the middle of it. A rank that fails ends the others as always.
        """
        found = launched()
        if found is None or self.num_ranks == 1:
            return make()
        store = dist.PrefixStore(f"attempt{found.attempt}/{name}", _connect(found))
        machine = f"machine of rank {found.rank - found.local_rank}"
        if found.local_rank > 0:
            _wait_until(lambda: store.check([machine]))
        made = make()
        store.set(machine, "made")
        store.add("ranks", 1)
        _wait_until(lambda: store.add("ranks", 0) == self.num_ranks)
        return made

    def which(self, holds: bool) -> list[int]:
        """The ranks for which something holds, agreed on the CPU."""
        answers = self.gather(torch.tensor([holds]))
        return [rank for rank, answer in enumerate(answers) if bool(answer)]

    def barrier(self) -> None:
        if self.control is not None:
            dist.barrier(group=self.control)


class Agreement:
    """Flags on which all ranks act after the same step, though only one rank may know of them.

    Each call hands in this rank's flags and returns the maximum over ranks of the exchange before, so that it is
    hidden behind a step. every_s: where calls follow quicker, as many share one exchange as fit into this time; the
    others return zeros, so a flag stands until it is agreed upon. Alone, flags take effect at once.
    """

    MOST_CALLS = 16  # that share an exchange: the next ones may take far longer than the last did

    def __init__(self, world: World, num_flags: int, *, every_s: float = 0.0) -> None:
        self._group = world.control
        self._num_flags = num_flags
        self._every_s = every_s
        self._values = torch.zeros(0)
        self._pending: dist.Work | None = None
        self._calls, self._calls_apart = 0, 1
        self._last = time.monotonic()

    def exchange(self, flags: Sequence[int]) -> list[int]:
        if self._group is None:
            return list(flags)
        self._calls += 1
        if self._calls < self._calls_apart:
            return [0] * self._num_flags
        agreed = self.settle()
        self._values = torch.tensor([*flags, self._calls_in_time()], dtype=torch.int32)
        self._pending = dist.all_reduce(
            self._values, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        return agreed

    def settle(self) -> list[int]:
        """The flags still under way (zeros where there are none); afterwards nothing is."""
        if self._pending is None:
            return [0] * self._num_flags
        self._pending.wait()
        self._pending = None
        *agreed, self._calls_apart = self._values.tolist()
        return agreed

    def _calls_in_time(self) -> int:
        """How many calls fit into `every_s`, as long as those since the last exchange took; agreed upon like a flag."""
        now = time.monotonic()
        each_s = (now - self._last) / self._calls
        self._last, self._calls = now, 0
        return int(min(self.MOST_CALLS, max(1.0, self._every_s / max(each_s, 1e-9))))


def choose_device(device: str, local_rank: int = 0) -> torch.device:
    """The torch device of a local rank; `auto` takes CUDA where there is one."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device = 'cuda', and torch sees no GPU here",
            "check `nvidia-smi` and that torch is a CUDA build, or use --device cpu",
        )
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"local rank {local_rank} has no GPU of its own: there are {torch.cuda.device_count()}",
            f"use --ranks {torch.cuda.device_count()} or fewer, or --device cpu",
        )
    return torch.device("cuda", local_rank)


def join(device: str, *, timeout_s: float) -> World:
    """Joins the ranks of this run, or stands alone where this process was not launched as one of several.

    Keys of the shared store carry the attempt: after an elastic restart, gloo would otherwise meet the addresses
    of dead ranks (pytorch #135712).
    """
    found = launched()
    if found is None:
        return World(device=choose_device(device))
    chosen = choose_device(device, found.local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    timeout = timedelta(seconds=timeout_s)
    store = dist.PrefixStore(f"attempt{found.attempt}", _connect(found))
    dist.init_process_group(
        "nccl" if chosen.type == "cuda" else "gloo",
        store=store,
        rank=found.rank,
        world_size=found.num_ranks,
        timeout=timeout,
        device_id=chosen if chosen.type == "cuda" else None,
    )
    return World(
        rank=found.rank,
        local_rank=found.local_rank,
        num_ranks=found.num_ranks,
        local_num_ranks=found.local_num_ranks,
        attempt=found.attempt,
        device=chosen,
        control=_side_group(found.num_ranks, timeout),
        saving=_side_group(found.num_ranks, timeout),
    )


@functools.cache
def _connect(found: Launched) -> dist.TCPStore:
    """The store where ranks meet; one connection a process, since rank 0 may be the one that serves it."""
    return dist.TCPStore(
        found.address,
        found.port,
        is_master=found.rank == 0 and not found.store_in_agent,
        timeout=timedelta(seconds=_MEETING_TIMEOUT_S),
        wait_for_workers=False,
    )


def _wait_until(is_so: Callable[[], bool]) -> None:
    pause_s = 0.002
    while not is_so():
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def share_word(name: str, make: Callable[[], str]) -> str:
    """What rank 0 made, on every rank and in every later attempt, before they have joined."""
    found = launched()
    assert found is not None, "only launched ranks have others to share a word with"
    store = dist.PrefixStore("paceline", _connect(found))
    if found.rank == 0 and not store.check([name]):
        store.set(name, make())
    return str(store.get(name).decode())


def _side_group(num_ranks: int, timeout: timedelta) -> dist.ProcessGroup | None:
    if num_ranks == 1:
        return None
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup), "every rank is a member of a group over all ranks"
    return group


def leave() -> None:
    """Leaves the process groups, if this process is in any."""
    if dist.is_initialized():
        dist.destroy_process_group()
