"""Runs the ranks of one machine to their end: restarts, requests to stop, a sentence for a failure.

How processes are started and ended is the agent's business, which failure counts `first_cause`'s.
What is shown while they run is the caller's, who is called ten times a second.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

from paceline.config.schema import LaunchConfig
from paceline.errors import ExitCode, PacelineError
from paceline.launch.agent import Attempt, LocalAgent, Orders, StoppedBeforeStartError, make_spec
from paceline.launch.first_cause import Cause, find_first_cause, read_failures, read_tail
from paceline.launch.lifeline import LAUNCHER, STOP_SIGNALS, open_standard_streams
from paceline.launch.outcome import (
    forget_earlier_launch,
    forget_processes,
    read_result,
    write_launcher_result,
)
from paceline.records.folder import RunFolder

TICK_S = 0.1
SAME_PRESS_S = 0.25  # shells and wrappers pass one Ctrl-C on twice
_NAMES = {**STOP_SIGNALS, signal.SIGHUP: "hang-up (SIGHUP)"}
Status = Literal["finished", "stopped", "failed", "interrupted"]
Outcome = Literal["succeeded", "failed", "stopped"]

logger = logging.getLogger("paceline.launch")


@dataclass(frozen=True)
class LaunchResult:
    """How a launch ended. `error` is what to raise, if anything: it has the same exit code."""

    status: Status
    exit_code: ExitCode
    reason: str
    num_restarts: int
    error: PacelineError | None = None


def launch(
    command: Sequence[str],
    folder: RunFolder,
    *,
    num_ranks: int,
    config: LaunchConfig,
    env: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    tick: Callable[[], None] | None = None,
) -> LaunchResult:
    """Runs `command` as `num_ranks` ranks until they end, restarting them after a crash.

    In the main thread the first Ctrl-C, SIGTERM, SIGUSR1 or hang-up lets ranks finish their step
    and save, and a further Ctrl-C ends them at once; in other threads signals are left alone.
    env: added to the ranks' environment. say: shows a sentence to the user, by default on stderr.
    tick: called ten times a second in this thread. If it raises, ranks end and the error goes on.
    Raises UserError where config.port is taken.
    """
    open_standard_streams()
    folder.create()
    forget_earlier_launch(folder)
    environ = {**_rank_environment(folder), **(env or {})}
    with _launcher_log(folder):
        launcher = Launcher(folder, num_ranks, config, _Show(say or _print, tick or _nothing))
        return launcher.run(command, environ)


class Launcher:
    """One launch: the agent's thread, the requests to stop, and what is said to the user."""

    def __init__(
        self, folder: RunFolder, num_ranks: int, config: LaunchConfig, show: _Show
    ) -> None:
        self._folder = folder
        self._ranks = range(num_ranks)
        self._config = config
        self._show = show
        self._orders = Orders()
        self._num_restarts = 0
        self._cause: Cause | None = None
        self._saved: frozenset[str] = frozenset()  # when the last attempt failed
        self._log_offsets = self._log_sizes()

    def run(self, command: Sequence[str], environ: Mapping[str, str]) -> LaunchResult:
        with _requests_to_stop(self._orders):
            spec = make_spec(
                command,
                num_ranks=len(self._ranks),
                max_restarts=self._config.max_restarts,
                port=self._config.port,
            )
            with contextlib.closing(
                LocalAgent(spec, environ, self._orders, self._may_restart)
            ) as agent:
                outcome = self._follow(_AgentThread(agent))
            forget_processes(self._folder)
            result = self._result(outcome)
            self._show.update()
        return result

    def _follow(self, thread: _AgentThread) -> Outcome:
        told = False
        thread.start()
        try:
            while thread.is_alive():
                thread.join(TICK_S)
                if self._orders.stop and not told:
                    told = True
                    self._tell_of_stop()
                self._show.update()
        finally:  # where `tick` raised, ranks are still running
            self._orders.at_once |= thread.is_alive()
            thread.join()
        return thread.outcome()

    def _tell_of_stop(self) -> None:
        again = " again" if self._orders.stop == STOP_SIGNALS[signal.SIGINT] else ""
        self._show.say(
            f"{self._orders.stop}: the ranks finish their step, save and end;"
            f" Ctrl-C{again} ends them at once, without saving"
        )

    def _may_restart(self, attempt: Attempt) -> bool:
        """Called in the agent's thread, when a rank of an attempt has failed and all have ended."""
        tails = {
            rank: read_tail(self._folder.log(rank), self._log_offsets[rank]) for rank in self._ranks
        }
        failures = read_failures(self._folder, attempt.number, self._ranks)
        before, self._cause = (
            self._cause,
            find_first_cause(list(attempt.ends.values()), failures, tails, attempt.ending_since),
        )
        saved_before, self._saved = self._saved, self._checkpoints()
        logger.info("%s: %s", self._cause.sentence(), attempt)
        is_over = attempt.was_stopping or self._orders.at_once or self._folder.result.exists()
        if is_over or self._cause.is_final or attempt.number >= self._config.max_restarts:
            return False
        if (
            self._orders.stop
        ):  # asked for since the failure: the agent sees it before it starts ranks
            return True
        if self._cause.repeats(before) and self._saved == saved_before:
            self._show.say("the same error a second time, with nothing saved in between")
            return False
        self._num_restarts += 1
        self._log_offsets = self._log_sizes()
        self._show.say(
            f"{self._cause.sentence()}; restart {self._num_restarts} of at most"
            f" {self._config.max_restarts}, from the last checkpoint"
            f" (its log: {self._folder.log(self._cause.rank)})"
        )
        return True

    def _checkpoints(self) -> frozenset[str]:
        path = self._folder.checkpoints
        return frozenset(entry.name for entry in path.iterdir()) if path.is_dir() else frozenset()

    def _log_sizes(self) -> dict[int, int]:
        """Where the logs of the next attempt begin: they go on in the same files."""
        logs = {rank: self._folder.log(rank) for rank in self._ranks}
        return {rank: log.stat().st_size if log.exists() else 0 for rank, log in logs.items()}

    def _result(self, outcome: Outcome) -> LaunchResult:
        written = read_result(self._folder)
        if outcome == "failed" and written and self._cause is not None:
            self._show.say(f"{self._cause.sentence()}, after the run had ended and was saved")
        if outcome == "succeeded" or written:
            return self._by_ranks(written)
        if self._orders.at_once:
            return self._by_launcher("interrupted", ExitCode.INTERRUPTED, "Ctrl-C, without saving")
        if outcome == "stopped":
            after = f" while ranks were restarted: {self._cause.sentence()}" if self._cause else ""
            return self._by_launcher("stopped", ExitCode.RESUME, f"{self._orders.stop}{after}")
        assert self._cause is not None, "ranks that failed have a first cause"
        if self._orders.stop and self._cause.asked_to_end:
            return self._by_launcher(
                "stopped", ExitCode.RESUME, f"{self._orders.stop} while ranks were started"
            )
        error = self._cause.error(self._folder, num_restarts=self._num_restarts)
        return self._by_launcher("failed", error.exit_code, error.what, error)

    def _by_ranks(self, written: Mapping[str, Any]) -> LaunchResult:
        """What rank 0 wrote; a command that writes nothing stopped where it was asked to."""
        status = written.get("status", "stopped" if self._orders.stop else "finished")
        stopped = status == "stopped"
        reason = str(written.get("reason", self._orders.stop))
        if stopped and self._orders.stop and reason == STOP_SIGNALS[signal.SIGUSR1]:
            reason = self._orders.stop  # ranks only know the signal that passed it on
            self._folder.write_result(**{**written, "reason": reason})
        code = ExitCode.RESUME if stopped else ExitCode.OK
        return LaunchResult("stopped" if stopped else "finished", code, reason, self._num_restarts)

    def _by_launcher(
        self, status: Status, code: ExitCode, reason: str, error: PacelineError | None = None
    ) -> LaunchResult:
        """The end of a run that no rank could write down."""
        try:
            write_launcher_result(
                self._folder, status="failed" if status == "failed" else "stopped", reason=reason
            )
        except OSError as unwritten:  # a full disk must not hide how the run ended
            self._show.say(f"{self._folder.result} cannot be written: {unwritten}")
        return LaunchResult(status, code, reason, self._num_restarts, error)


class _AgentThread(threading.Thread):
    """Runs the agent to its end, and keeps what came of it."""

    def __init__(self, agent: LocalAgent) -> None:
        super().__init__(name="paceline-agent", daemon=True)
        self._agent = agent
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._outcome = "failed" if self._agent.run().is_failed() else "succeeded"
        except StoppedBeforeStartError:
            self._outcome = "stopped"
        except BaseException as error:  # noqa: BLE001 (raised again by outcome())
            self._error = error

    def outcome(self) -> Outcome:
        if self._error is not None:
            raise self._error
        assert self._outcome is not None, "the agent has ended"
        return self._outcome


class _Show:
    """What the user sees while ranks run; sentences from any thread are said in the caller's."""

    def __init__(self, say: Callable[[str], None], tick: Callable[[], None]) -> None:
        self._say = say
        self._tick = tick
        self._sentences: deque[str] = deque()
        self._is_gone = False

    def say(self, sentence: str) -> None:
        logger.info("%s", sentence)
        self._sentences.append(sentence)

    def update(self) -> None:
        if self._is_gone:
            return
        try:
            while self._sentences:
                self._say(self._sentences.popleft())
            self._tick()
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            # The terminal is gone. A run outlives it, as a disowned one should.
            self._is_gone = True
            logger.warning("nobody reads the output any more: %s", error)


@contextlib.contextmanager
def _requests_to_stop(orders: Orders) -> Iterator[None]:
    """Turns signals into orders in the main thread; ignored ones (nohup) stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first_press = 0.0

    def heard(number: int, frame: FrameType | None) -> None:
        nonlocal first_press
        if not orders.stop:
            first_press = time.monotonic()
            orders.stop = _NAMES[signal.Signals(number)]
        elif number == signal.SIGINT and time.monotonic() - first_press > SAME_PRESS_S:
            orders.at_once = True

    numbers = [number for number in _NAMES if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, heard) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def _launcher_log(folder: RunFolder) -> Iterator[None]:
    """Sends what torch's elastic machinery and this package log to logs/launcher.log only."""
    handler = _LogFile(folder.log(0).with_name("launcher.log"), encoding="utf-8", delay=True)
    handler.addFilter(_is_true_here)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    torchs = ("torch.distributed.elastic", "torchelastic-events-null")
    loggers = [logger, *map(logging.getLogger, torchs)]
    before = [(each.propagate, each.level) for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.propagate = False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for each, (propagate, level) in zip(loggers, before, strict=True):
            each.removeHandler(handler)
            each.propagate = propagate
            each.setLevel(level)
        handler.close()


class _LogFile(logging.FileHandler):
    """A log that never costs the run: on a full disk its lines are lost."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


def _is_true_here(record: logging.LogRecord) -> bool:
    """Whether a warning of torch's holds: it fears orphans where its agent handles no signals."""
    return not str(record.msg).startswith("Failed to register signal handlers")


def _rank_environment(folder: RunFolder) -> dict[str, str]:
    environ = {
        LAUNCHER: str(os.getpid()),
        "PACELINE_LOGS": str(folder.log(0).parent.absolute()),
    }
    has_loopback = "lo" in {name for _, name in socket.if_nameindex()}
    if has_loopback and "GLOO_SOCKET_IFNAME" not in os.environ:
        environ["GLOO_SOCKET_IFNAME"] = "lo"  # gloo would look for a network by this machine's name
    return environ


def _print(sentence: str) -> None:
    print(f"paceline: {sentence}", file=sys.stderr, flush=True)


def _nothing() -> None:
    pass
