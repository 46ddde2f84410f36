"""How many samples go through the model at once: fewer where memory runs out, more again later.

Every decision follows from what all ranks have agreed on, so it is the same on each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.config.schema import MemoryConfig
from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.parallel.memory import ShortOfMemoryError
from paceline.parallel.place import Place, Split

_MORE_PATIENCE = 4  # as many times the steps until the next try, after one that failed


@dataclass(frozen=True)
class Shortage:
    """Where memory ran out and what was done; rows: samples of a pass in one process, before and after."""

    where: (
        str  # "training", "optimizer", "evaluation", or "" where a micro-batch was enlarged again
    )
    rows: int
    rows_now: int
    ranks: list[int] = field(default_factory=list)
    words: str = ""

    @property
    def is_local(self) -> bool:
        """Whether this rank met it alone, and mended it without the others."""
        return self.where in ("optimizer", "evaluation")

    def sentence(self) -> str:
        if not self.where:
            return f"a pass takes {self.rows_now} samples again, after {self.rows}"
        what = f"{ranks_of(self.ranks)} ran out of memory in {self.where}"
        if self.where == "optimizer":
            return f"{what}'s update; memory was freed and the update done again"
        done = "batch was evaluated again" if self.where == "evaluation" else "step was done again"
        return f"{what}, in a pass of {self.rows} samples; the {done} with {self.rows_now}"

    def fields(self) -> dict[str, Any]:
        return asdict(self)


def ranks_of(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks))
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


class Room:
    """The size of a training pass, and what happened to it.

    rows: samples of one pass in this process. first: the number of this rank's first micro-batch of a step.
    events: what happened since the caller last took them.
    """

    def __init__(self, config: MemoryConfig, split: Split, place: Place) -> None:
        self._config = config
        self._devices = place.devices_per_process
        self._before = (
            place.data_rank * split.accumulation
        )  # micro-batches of the ranks before, of full size
        self._most = split.rows
        self.rows = split.rows
        self._patience = config.regrow_after
        self._good_steps = 0
        self._on_trial = False
        self.events: list[Shortage] = []

    @property
    def first(self) -> int:
        return self._before * (self._most // self.rows)

    @property
    def smallest(self) -> int:
        """Samples of a pass in this process that are never fallen below."""
        return self._config.smallest * self._devices

    def cut(self, micro_batches: Sequence[Batch]) -> list[Batch]:
        """A step's micro-batches as they go through the model."""
        return [part for batch in micro_batches for part in batch.cut(self.rows)]

    def shrink(self, error: ShortOfMemoryError, *, has_groups: bool) -> None:
        """After a step that did not fit: the next smaller size, or a UserError that says why there is none.

        has_groups: whether the model normalises samples of a pass together.
        """
        sizes = [n for n in self._sizes() if 2 * n <= self.rows]
        self._check(error, sizes, has_groups)
        self._patience *= _MORE_PATIENCE if self._on_trial else 1
        self._good_steps, self._on_trial = 0, False
        self._change(sizes[-1], "training", error.ranks, error.words)

    def _check(self, error: ShortOfMemoryError, sizes: list[int], has_groups: bool) -> None:
        what = f"{ranks_of(error.ranks)} ran out of memory in a pass of {self.rows} samples"
        if not sizes:
            raise UserError(
                f"{what}, and no smaller one is allowed (memory.smallest = {self._config.smallest})",
                "use smaller inputs or a smaller model, bf16, or more ranks with a larger global batch",
            )
        smaller = f"parallel.micro_batch = {sizes[-1] // self._devices}"
        if self._config.shrink == "never":
            raise UserError(what, f"set {smaller}, or memory.shrink = 'auto'")
        if has_groups and self._config.shrink == "auto":
            raise UserError(
                f"{what}, and smaller ones would change BatchNorm's statistics groups",
                f"set {smaller}, or memory.shrink = 'always' to accept other groups",
            )

    def after_step(self) -> None:
        """After a step that went well: tries the next larger size where it is time."""
        if self.rows == self._most or not self._patience:
            return
        self._good_steps += 1
        if self._good_steps >= self._patience:
            self._good_steps, self._on_trial = 0, True
            self._change(
                next(n for n in self._sizes() if n >= 2 * self.rows or n == self._most), ""
            )

    def _change(self, rows: int, where: str, ranks: Sequence[int] = (), words: str = "") -> None:
        self.events.append(Shortage(where, self.rows, rows, list(ranks), words))
        self.rows = rows

    def _sizes(self) -> list[int]:
        """What divides the full size, from the smallest allowed on."""
        each = self._most // self._devices
        return [
            n * self._devices
            for n in range(min(self._config.smallest, each), each + 1)
            if each % n == 0
        ]

    def note(self, shortage: Shortage) -> None:
        """Of the optimizer or the evaluation, which do not change the size."""
        self.events.append(shortage)

    def take_events(self) -> list[Shortage]:
        events, self.events = self.events, []
        return events
