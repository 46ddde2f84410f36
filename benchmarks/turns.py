"""Lets several training loops in one process take turns, a block of steps each, each loop as it is.

A loop runs in a greenlet, and hands over where it asks for its next batch. All share one thread, and so its memory
arena, its OpenMP threads and its place on a core: threads of their own would give each loop other ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from greenlet import greenlet

_NO_END = 1 << 62


@dataclass(frozen=True)
class Block:
    """Some steps in a row. step_s: of each, from fetch to fetch. cpu_s: of all threads of the process, together."""

    step_s: list[float]
    cpu_s: float

    @property
    def seconds(self) -> float:
        return sum(self.step_s)


class TurnTaking:
    """One of the loops.

    body: runs the loop; is given a function that the loop's data set calls first for every batch.
    synchronize: waits for the device, so that a block's time holds all of its work.
    """

    def __init__(
        self, body: Callable[[Callable[[], None]], None], synchronize: Callable[[], None]
    ) -> None:
        self._greenlet = greenlet(lambda: body(self._next_batch))
        self._synchronize = synchronize
        self._left = 0
        self._stamps: list[float] = []

    def take(self, num_steps: int) -> Block:
        """Lets the loop go on for this many steps. The first call, with 0 steps, lets it set itself up."""
        self._left = num_steps
        begin_cpu = time.process_time()
        self._greenlet.switch()
        assert not self._greenlet.dead, "the loop ended before its turns did: it needs more data"
        cpu_s = time.process_time() - begin_cpu
        steps = [end - begin for begin, end in zip(self._stamps, self._stamps[1:], strict=False)]
        return Block(steps, cpu_s)

    def end(self) -> None:
        """Lets the loop run to its end."""
        self._left = _NO_END
        self._greenlet.switch()
        assert self._greenlet.dead, "the loop still waits for its turn"

    def _next_batch(self) -> None:
        if self._left == 0:
            self._synchronize()
            self._stamps.append(time.perf_counter())
            self._greenlet.parent.switch()
            self._stamps = []
        self._stamps.append(time.perf_counter())
        self._left -= 1
