"""Ties a rank to whoever started it: it hears requests to stop and never outlives its launcher.

Knows no torch, so that a rank is tied before the seconds that importing it takes. What a request to
stop means is the training loop's business.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import NoReturn

STOP_SIGNALS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGUSR1: "SIGUSR1",
}
LAUNCHER = "PACELINE_LAUNCHER"  # in a rank's environment: the process that must not be outlived
POLL_S = 0.25
PATIENCE_S = 2.0  # from SIGTERM, for a rank that waits for a dead one; launchers kill soon after
_PR_SET_PDEATHSIG = 1


class Lifeline:
    """Signals, parent and peers of one rank.

    A thread reads signals from a pipe: Python's own handlers wait for the main thread, which may
    sit in a collective for ever.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.reason: str | None = None
        self._listener: Callable[[str], None] = _nobody
        self._failed_peer: Callable[[], int | None] = lambda: None
        self._abandon: Callable[[int], NoReturn] = _leave
        self._terminated_at: float | None = None
        self._process = os.getpid()
        self._held = threading.local()
        self._reading, self._writing = os.pipe()
        self._parent = int(environ.get(LAUNCHER, os.getppid()))
        # Only what an elastic agent started: a rank started by hand may outlive its shell (nohup).
        self._has_launcher = LAUNCHER in environ or "TORCHELASTIC_RUN_ID" in environ

    def attach(self) -> None:
        """Takes over the signals and ties this process to its launcher; before anything slow."""
        os.set_blocking(self._writing, False)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
            signal.siginterrupt(number, False)  # native code in the middle of a read goes on
        os.register_at_fork(
            before=self._hold, after_in_parent=self._unhold, after_in_child=self._release
        )
        if self._has_launcher:
            _die_with_parent()
        threading.Thread(target=self._watch, name="paceline-lifeline", daemon=True).start()
        # The launcher starts ranks with its signal blocked: one sent before this moment was kept.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def tell(self, listener: Callable[[str], None]) -> None:
        """Passes requests to stop on, earlier ones included; `listener` may be called often."""
        self._listener = listener
        if self.reason is not None:
            listener(self.reason)

    def end_when_stuck(
        self, failed_peer: Callable[[], int | None], abandon: Callable[[int], NoReturn]
    ) -> None:
        """Calls `abandon` after SIGTERM, once `failed_peer` names a rank that will never answer."""
        self._abandon = abandon
        self._failed_peer = failed_peer

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._process:
            self._hear(number)

    def _hear(self, number: int) -> None:
        if number not in STOP_SIGNALS:
            return
        if number == signal.SIGTERM and self._terminated_at is None:
            self._terminated_at = time.monotonic()
        if self.reason is None:
            self.reason = STOP_SIGNALS[signal.Signals(number)]
        self._listener(self.reason)

    def _watch(self) -> None:
        while True:
            if select.select([self._reading], [], [], POLL_S)[0]:
                for number in os.read(self._reading, 512):
                    self._hear(number)
            if self._has_launcher and os.getppid() != self._parent:
                end_group()
            self._end_if_stuck()

    def _end_if_stuck(self) -> None:
        since = self._terminated_at
        if since is None or time.monotonic() - since < PATIENCE_S:
            return
        peer = self._failed_peer()
        if peer is not None:
            self._abandon(peer)

    def _hold(self) -> None:
        """Before a fork: a signal to a child that still has our handlers would be heard here."""
        self._held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def _unhold(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._held.mask)

    def _release(self) -> None:
        """In a forked child, whose signals are its own and must not wake the rank."""
        for number in STOP_SIGNALS:
            if signal.getsignal(number) == self._on_signal:
                ends = number != signal.SIGINT
                signal.signal(number, signal.SIG_DFL if ends else signal.default_int_handler)
        previous = signal.set_wakeup_fd(-1)
        if previous not in (-1, self._writing):
            signal.set_wakeup_fd(previous)
        self._unhold()


def end_group() -> NoReturn:
    """Ends this process and all that it started, at once."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    end_children()
    os._exit(1)


def end_children() -> None:
    """Ends the processes started through multiprocessing, such as loader workers, at once."""
    for child in multiprocessing.active_children():
        child.kill()


def open_standard_streams() -> None:
    """Opens /dev/null for a closed stdin, stdout or stderr, lest a pipe get its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one


def _die_with_parent() -> None:
    """SIGKILL from the kernel when the thread that started this process ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _nobody(reason: str) -> None:
    pass


def _leave(peer: int) -> NoReturn:
    os._exit(1)
