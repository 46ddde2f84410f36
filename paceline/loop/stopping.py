"""Asking a run to stop, and what all ranks decide together after every step."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

import torch

from paceline.config.schema import RunConfig
from paceline.parallel.world import Agreement, World

MAX_MINUTES = "max_minutes"
_REASONS = ["", MAX_MINUTES, "SIGUSR1", "SIGTERM", "Ctrl-C"]  # the larger wins where ranks differ
FLUSH_EVERY_S = 0.5
AGREE_EVERY_S = 0.1  # an exchange is 0.2 ms of a core: much for every one of many short steps


class StopRequest:
    """A flag that signal handlers set and the loop reads; asking twice is asking once."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def request(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason


@contextlib.contextmanager
def stop_on_signals(stop: StopRequest) -> Iterator[None]:
    """In a process of one's own, Ctrl-C and SIGTERM ask to stop; a second Ctrl-C interrupts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.reason is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.request(
            {signal.SIGINT: "Ctrl-C"}.get(signal.Signals(number), signal.Signals(number).name)
        )

    before = {
        number: signal.signal(number, ask)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Decision:
    """What every rank does after this step: equal on all of them."""

    stop: str = ""
    save: bool = False
    flush: bool = False


class Decisions:
    """Clocks are read on rank 0 and signals on every rank; one small exchange, hidden behind a step, makes them one."""

    def __init__(self, world: World, config: RunConfig, stop: StopRequest) -> None:
        self._world = world
        self._agreement = Agreement(world, 3, every_s=AGREE_EVERY_S)
        self._stop = stop
        self._leads = world.rank == 0
        self._owes_save = False
        now = time.monotonic()
        self._deadline = (
            now + 60 * config.train.max_minutes if config.train.max_minutes else float("inf")
        )
        self._save_every_s = 60 * config.checkpoint.every_minutes or float("inf")
        self._last_save = self._last_flush = now

    def at_start(self) -> str:
        """Why not to begin, if ranks were asked to stop while they started."""
        mine = torch.tensor(_REASONS.index(self._reason(time.monotonic())))
        return _REASONS[max(int(code) for code in self._world.gather(mine))]

    def after_step(self) -> Decision:
        now = time.monotonic()
        save = self._leads and now - self._last_save >= self._save_every_s
        flush = self._leads and now - self._last_flush >= FLUSH_EVERY_S
        decision = self._exchange(now, save, flush)
        if decision.save:
            self._last_save = now
        if decision.flush:
            self._last_flush = now
        self._owes_save = False
        return decision

    def in_evaluation(self) -> str:
        """Why to break the evaluation off, if so; a save that falls into it follows the next step."""
        decision = self._exchange(time.monotonic(), save=False, flush=False)
        self._owes_save = decision.save
        return decision.stop

    def _exchange(self, now: float, save: bool, flush: bool) -> Decision:
        flags = [_REASONS.index(self._reason(now)), save, flush]
        stop, agreed_save, agreed_flush = self._agreement.exchange(flags)
        return Decision(
            stop=_REASONS[stop],
            save=bool(agreed_save) or self._owes_save,
            flush=bool(agreed_flush),
        )

    def settle(self) -> None:
        """Before anything else uses the control group."""
        self._agreement.settle()

    def _reason(self, now: float) -> str:
        if self._stop.reason is not None:
            return self._stop.reason if self._stop.reason in _REASONS else "SIGTERM"
        return MAX_MINUTES if self._leads and now >= self._deadline else ""
