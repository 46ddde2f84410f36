"""The phase clock: where a training step's time goes; it measures and leaves writing to the loop.

On CUDA each mark is an event on the step's stream, so measuring adds no synchronization. All
phases, the wait for data too, are then times on the device's own time line: data that arrives
while the device is still busy costs nothing, and only the wait that is exposed counts. `step_s`
runs from `start_step` to `end_step` on that same line; in a steady state, where one step follows
the other, it agrees with the host's clock. On a CPU the host's clock is the time line.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import torch

PHASES = ("data", "copy", "forward", "backward", "exchange", "optimizer", "other")

Stamp = Any  # seconds on a CPU, an event on CUDA
Mark = tuple[str, Stamp]  # from this moment on, time belongs to the named phase


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step on this rank; the phases, in the order of PHASES, add up to `step_s`."""

    step_s: float
    phases: dict[str, float]


class PhaseClock:
    """Marks where the phases of a step begin; `collect` makes seconds of the marks of ended steps.

    A phase that is entered several times in a step adds up. Marks outside of a step count for
    nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._line: TimeLine = CudaLine(device) if device.type == "cuda" else HostLine()
        self._now = self._line.now
        self._entries = {name: _Phase(self, name) for name in PHASES}
        self._outer: list[str] = []  # the phases around the current one
        self._phase = "other"
        self._marks: list[Mark] | None = None  # of the open step
        self._gradients: list[Stamp] = []
        self._ended: list[tuple[list[Mark], list[Stamp]]] = []

    def start_step(self) -> None:
        """Opens a step; one that was opened and never ended is forgotten."""
        self._line.begin()
        self._marks, self._gradients = [("other", self._now())], []
        self._outer.clear()
        self._phase = "other"

    def phase(self, name: str) -> _Phase:
        """`with clock.phase("forward"): …`; inside another phase, the time is the inner one's."""
        entry = self._entries.get(name)
        assert entry is not None, f"{name!r} is no phase; they are {', '.join(PHASES)}"
        return entry

    def mark(self, phase: str) -> None:
        """From now on, time belongs to `phase`, until the next mark."""
        assert phase in self._entries, f"{phase!r} is no phase; they are {', '.join(PHASES)}"
        self._phase = phase
        if self._marks is not None:
            self._marks.append((phase, self._now()))

    def last_gradient(self) -> None:
        """The last gradients are on their way: the rest of this backward waits for the exchange.

        May come from autograd's thread, and once for every bucket: the last call in a backward
        counts.
        """
        if self._marks is not None:
            self._gradients.append(self._now())

    def end_step(self) -> None:
        assert self._marks is not None, "end_step without start_step"
        self._marks.append(("other", self._now()))
        self._ended.append((self._marks, self._gradients))
        self._marks = None

    def collect(self) -> list[StepTimes]:
        """The times of the steps ended since the last call, in order; on CUDA it waits for them."""
        ended, self._ended = self._ended, []
        return [self._resolve(marks, gradients) for marks, gradients in ended]

    def _resolve(self, marks: list[Mark], gradients: list[Stamp]) -> StepTimes:
        stamps = [stamp for _, stamp in marks]
        self._line.wait_for(stamps[-1])
        times = self._line.seconds(stamps)
        sent = self._line.seconds([stamps[0], *gradients])[1:]
        phases = dict.fromkeys(PHASES, 0.0)
        for (name, _), begin, end in zip(marks, times, times[1:], strict=False):
            exposed = _after_last(sent, begin, end) if name == "backward" and sent else 0.0
            phases[name] += end - begin - exposed
            phases["exchange"] += exposed
        self._line.recycle([*stamps, *gradients])
        return StepTimes(times[-1], phases)


class _Phase:
    """One phase as a context; made once, entered often."""

    __slots__ = ("_clock", "_name")

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        clock = self._clock  # as `mark` does, without the price of a call
        clock._outer.append(clock._phase)
        clock._phase = self._name
        if clock._marks is not None:
            clock._marks.append((self._name, clock._now()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        clock = self._clock
        clock._phase = clock._outer.pop() if clock._outer else "other"
        if clock._marks is not None:
            clock._marks.append((clock._phase, clock._now()))


class TimeLine(Protocol):
    """Where stamps come from, and the seconds between them."""

    def begin(self) -> None: ...

    def now(self) -> Stamp: ...

    def wait_for(self, stamp: Stamp) -> None: ...

    def seconds(self, stamps: Sequence[Stamp]) -> list[float]:
        """Seconds from the first stamp to each."""

    def recycle(self, stamps: Sequence[Stamp]) -> None: ...


class HostLine:
    """The host's clock."""

    now = staticmethod(time.perf_counter)

    def begin(self) -> None:
        pass

    def wait_for(self, stamp: Stamp) -> None:
        pass

    def seconds(self, stamps: Sequence[Stamp]) -> list[float]:
        return [stamp - stamps[0] for stamp in stamps]

    def recycle(self, stamps: Sequence[Stamp]) -> None:
        pass


class CudaLine:
    """Events on the stream that is current when a step starts, whatever thread records them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.current_stream(device)
        self._pool: list[torch.cuda.Event] = []

    def begin(self) -> None:
        self._stream = torch.cuda.current_stream(self._device)

    def now(self) -> Stamp:
        try:
            event = self._pool.pop()  # atomic: autograd's thread stamps too
        except IndexError:
            event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def wait_for(self, stamp: Stamp) -> None:
        stamp.synchronize()

    def seconds(self, stamps: Sequence[Stamp]) -> list[float]:
        return [0.0] + [stamps[0].elapsed_time(stamp) / 1000 for stamp in stamps[1:]]

    def recycle(self, stamps: Sequence[Stamp]) -> None:
        self._pool.extend(stamps)


def _after_last(moments: Sequence[float], begin: float, end: float) -> float:
    """Seconds from the last of the moments between begin and end up to the end; 0 without one."""
    return min((end - moment for moment in moments if begin <= moment <= end), default=0.0)
