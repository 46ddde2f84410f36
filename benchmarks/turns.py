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
    """Some steps in a row, each from fetch to fetch.

    step_s: of each step. own_s: of each step, without what the stopwatch saw.
    """

    step_s: list[float]
    own_s: list[float]

    @property
    def seconds(self) -> float:
        return sum(self.step_s)


class Stopwatch:
    """Adds up the time of what all loops have in common. May be started again while it runs: the outermost counts."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begin = 0.0
        self._depth = 0

    def start(self, *_: object) -> None:
        if self._depth == 0:
            self._begin = time.perf_counter()
        self._depth += 1

    def stop(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._begin


class TurnTaking:
    """One of the loops.

    body: runs the loop; is given a function that the loop's data set calls first for every batch.
    synchronize: waits for the device, so that a block's time holds all of its work. common: what all loops do alike.
    """

    def __init__(
        self,
        body: Callable[[Callable[[], None]], None],
        synchronize: Callable[[], None],
        common: Stopwatch,
    ) -> None:
        self._greenlet = greenlet(lambda: body(self._next_batch))
        self._synchronize = synchronize
        self._left = 0
        self._common = common
        self._stamps: list[tuple[float, float]] = []

    def take(self, num_steps: int) -> Block:
        """Lets the loop go on for this many steps. The first call, with 0 steps, lets it set itself up."""
        self._left = num_steps
        self._greenlet.switch()
        assert not self._greenlet.dead, "the loop ended before its turns did: it needs more data"
        pairs = list(zip(self._stamps, self._stamps[1:], strict=False))
        steps = [end - begin for (begin, _), (end, _) in pairs]
        common = [end - begin for (_, begin), (_, end) in pairs]
        return Block(steps, [a - b for a, b in zip(steps, common, strict=True)])

    def end(self) -> None:
        """Lets the loop run to its end."""
        self._left = _NO_END
        self._greenlet.switch()
        assert self._greenlet.dead, "the loop still waits for its turn"

    def _next_batch(self) -> None:
        if self._left == 0:
            self._synchronize()
            self._stamp()
            self._greenlet.parent.switch()
            self._stamps = []
        self._stamp()
        self._left -= 1

    def _stamp(self) -> None:
        self._stamps.append((time.perf_counter(), self._common.seconds))
