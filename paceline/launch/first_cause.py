"""Finds the failure that explains all others, from what ranks wrote and how their processes ended.

A rank that loses its connection often reports before, and louder than, the rank that died. So: a
signal before an exception of a rank's own, that before a lost connection; then the earlier one.
"""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.errors import DivergedError, ExitCode, PacelineError, RankFailedError, UserError
from paceline.records.folder import RunFolder, write_atomically

Category = Literal["user", "diverged", "own", "lost-connection"]
EXIT_CODES: dict[Category, ExitCode] = {
    "user": ExitCode.USER,
    "diverged": ExitCode.DIVERGED,
    "own": ExitCode.INTERNAL,
    "lost-connection": ExitCode.INTERNAL,
}
FINAL = (ExitCode.USER, ExitCode.DIVERGED)  # exit codes of a rank that a restart would not change
_LONGEST = 300  # characters of an exception's text in a sentence
_TAIL_BYTES = 32 * 1024  # more than faulthandler's stacks of a rank's threads

_LOST_CONNECTION = re.compile(
    # gloo
    r"connection closed by (?:peer|local|remote)|connection reset|connection refused|broken pipe"
    r"|application timeout caused pair closure|timed out waiting \d+ ?ms for|socket timeout"
    r"|connectfullmesh failed|monitoredbarrier"
    # the store
    r"|wait timeout after|failed to recv, got 0 bytes|recvvalue failed|connection was likely closed"
    r"|the client socket has (?:failed|timed out)"
    # NCCL
    r"|nccl error|nccl communicator was aborted|nccl operations have failed or timed out"
    r"|watchdog caught collective operation timeout|remote process exited",
    re.IGNORECASE,
)
_LOST_TYPES = {"DistBackendError", "DistNetworkError", "DistStoreError"}
_SHARED_MEMORY = re.compile(
    r"out of shared memory|insufficient shared memory|allocate shared memory"
    r"|/torch_\S*.*no space left on device|no space left on device.*/(?:dev/shm|torch_)",
    re.IGNORECASE | re.DOTALL,
)
_SHARED_MEMORY_HINT = (
    "give it more room (`docker run --shm-size=8g`, `mount -o remount,size=8g /dev/shm`), or use"
    " --set data.workers=0"
)

_SIGNAL_HINTS: dict[int, str] = {
    signal.SIGKILL: (
        "this is often the kernel's out-of-memory killer (see `dmesg`): lower parallel.micro_batch or"
        " data.workers, or give the job more memory"
    ),
    signal.SIGBUS: (
        f"this is often shared memory (/dev/shm) that is too small: {_SHARED_MEMORY_HINT}"
    ),
    signal.SIGSEGV: "native code touched foreign memory: the stack in the log names it",
    signal.SIGABRT: "native code gave up: the last lines of the log say why",
    signal.SIGFPE: "native code divided by zero: the stack at the end of the log names it",
    signal.SIGILL: (
        "a library was built for another processor: the stack at the end of the log names it"
    ),
    signal.SIGTERM: "someone, or the scheduler, asked this one process to end",
    signal.SIGXCPU: "the limit on processor time was reached: see `ulimit -t`",
}


@dataclass(frozen=True)
class Failure:
    """What ended a rank, as the rank itself tells it."""

    rank: int
    time: float
    category: Category
    type: str
    what: str
    hint: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class RankEnd:
    """How a rank's process ended, as its launcher saw it. `sent`: what it had sent it before."""

    rank: int
    exit_code: int
    time: float
    sent: frozenset[int] = frozenset()

    @property
    def signal(self) -> int | None:
        """The signal that ended it, unless the launcher had sent that."""
        number = -self.exit_code
        return number if number > 0 and number not in self.sent else None


@dataclass(frozen=True)
class Cause:
    """The first cause: `failure` where the rank told of it, else `end` and the end of its log."""

    rank: int
    end: RankEnd
    failure: Failure | None = None
    tail: str = ""

    @property
    def is_final(self) -> bool:
        """Whether a restart would end the same way."""
        if self.failure is not None:
            return EXIT_CODES[self.failure.category] in FINAL
        return self.end.exit_code in FINAL

    def repeats(self, before: Cause | None) -> bool:
        """Whether this is the exception of `before` again, raised at the same place: a defect, not an accident."""
        if before is None or self.failure is None or before.failure is None:
            return False
        mine, theirs = self.failure, before.failure
        return mine.category == "own" and mine.traceback == theirs.traceback

    @property
    def asked_to_end(self) -> bool:
        """Whether someone sent this rank a request to stop before it could hear one."""
        requests = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        return self.failure is None and self.end.signal in requests

    def sentence(self) -> str:
        if self.failure is not None:
            return _told(self.failure)
        if self.end.signal is not None:
            name = signal_name(self.end.signal)
            return f"rank {self.rank} was killed by {name}{_thrown(self.tail)}"
        words = last_line(self.tail)
        said = f" after it had printed {words!r}" if words else ", without a word"
        return f"rank {self.rank} ended with exit code {self.end.exit_code}{said}"

    def hint(self) -> str:
        if self.failure is None:
            return _SIGNAL_HINTS.get(self.end.signal or 0, "")
        if self.failure.category == "lost-connection":
            return "no rank told of an error of its own: read the end of each log"
        return self.failure.hint

    def error(self, folder: RunFolder, *, num_restarts: int = 0) -> PacelineError:
        """The error that ends the command: in the rank's own words where the user can mend it."""
        if self.failure is not None and self.failure.category == "user":
            return UserError(self.failure.what, self.failure.hint)
        if self.failure is not None and self.failure.category == "diverged":
            return DivergedError(self.failure.what, self.failure.hint)
        times = f", after {num_restarts} restart{'s' * (num_restarts > 1)}" if num_restarts else ""
        log = folder.log(self.rank)
        what = f"{self.sentence()}{times} (its log: {log})"
        if self.is_final:
            return UserError(what, self.hint() or f"read the end of {log}")
        return RankFailedError(what, self.hint() or f"the traceback is at the end of {log}")


def describe(error: BaseException, rank: int) -> Failure:
    """An exception that ended a rank, as data."""
    category, what, hint = _classify(error)
    return Failure(
        rank=rank,
        time=time.time(),
        category=category,
        type=type(error).__name__,
        what=what,
        hint=hint,
        traceback="".join(traceback.format_exception(type(error), error, error.__traceback__)),
    )


def is_lost_connection(error: BaseException) -> bool:
    """Whether an exception only says that another rank is gone or does not answer.

    Python's own ConnectionError does not: it is a data source's, no collective raises it.
    """
    if not isinstance(error, RuntimeError):
        return False
    if type(error).__name__ in _LOST_TYPES or _LOST_CONNECTION.search(str(error)):
        return True
    return error.__cause__ is not None and is_lost_connection(error.__cause__)


def write_failure(folder: RunFolder, attempt: int, failure: Failure) -> None:
    path = folder.failure(attempt, failure.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(dataclasses.asdict(failure), indent=1) + "\n")


def read_failures(folder: RunFolder, attempt: int, ranks: Sequence[int]) -> dict[int, Failure]:
    """What ranks of one attempt wrote before they ended; one that was killed wrote nothing."""
    found = {}
    for rank in ranks:
        path = folder.failure(attempt, rank)
        if path.exists():
            found[rank] = Failure(**json.loads(path.read_text(encoding="utf-8")))
    return found


def find_first_cause(
    ends: Sequence[RankEnd],
    failures: Mapping[int, Failure],
    tails: Mapping[int, str],
    ending_since: float,
) -> Cause:
    """The failure of one attempt that explains the others.

    ends: of every rank whose process ended. failures: what ranks wrote. tails: of their logs.
    ending_since: when the launcher began to end the others (unix seconds).
    """
    candidates = [
        (_order(end, failures.get(end.rank), tails.get(end.rank, ""), ending_since), end)
        for end in ends
        if end.exit_code != 0
    ]
    assert candidates, "there is a first cause only where a rank failed"
    _, first = min(candidates, key=lambda candidate: (candidate[0], candidate[1].rank))
    return Cause(first.rank, first, failures.get(first.rank), tails.get(first.rank, ""))


def _order(
    end: RankEnd, failure: Failure | None, tail: str, ending_since: float
) -> tuple[int, float]:
    """Sorts a rank's end among the others'; a smaller class comes first, then the earlier one."""
    own, lost, ended_by_launcher = 1, 2, 3
    if failure is not None:
        return (lost if failure.category == "lost-connection" else own), failure.time
    if end.exit_code < 0 and end.signal is None:
        return ended_by_launcher, end.time
    if end.signal == signal.SIGABRT and _LOST_CONNECTION.search(tail):
        return lost, end.time  # a watchdog thread, such as NCCL's, that gives up on a lost peer
    if end.signal is not None and (end.time <= ending_since or end.signal == signal.SIGKILL):
        # A process that the kernel kills loses its sockets before its launcher sees it end.
        return 0, end.time
    return own, end.time


def _classify(error: BaseException) -> tuple[Category, str, str]:
    if isinstance(error, UserError):
        return "user", error.what, error.hint
    if isinstance(error, DivergedError):
        return "diverged", error.what, error.hint
    if isinstance(error, PacelineError):
        return "own", error.what, error.hint
    text = first_line(str(error))
    if isinstance(error, (RuntimeError, OSError)) and _SHARED_MEMORY.search(str(error)):
        return (
            "user",
            "shared memory (/dev/shm) is too small for the loader workers",
            _SHARED_MEMORY_HINT,
        )
    if type(error).__name__ == "OutOfMemoryError":
        return "user", f"the GPU's memory is too small: {text}", "lower parallel.micro_batch"
    if is_lost_connection(error):
        return "lost-connection", text, ""
    return "own", text, ""


def _told(failure: Failure) -> str:
    if failure.category == "lost-connection":
        return f"rank {failure.rank} lost its connection to the others: {failure.what}"
    text = f"{failure.type}: {failure.what}" if failure.what else failure.type
    return f"rank {failure.rank} failed with {text}{_place(failure.traceback)}"


def _place(text: str) -> str:
    """` (model.py, line 12)`: the innermost frame of a printed traceback."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', text)
    return f" ({Path(frames[-1][0]).name}, line {frames[-1][1]})" if frames else ""


def _thrown(tail: str) -> str:
    """What the C++ runtime prints of an exception that nobody catches, before SIGABRT."""
    found = re.findall(r"^\s*what\(\):\s*(.+)", tail, re.MULTILINE)
    return f": {_short(found[-1])}" if found else ""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _short(lines[0]) if lines else ""


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _short(lines[-1]) if lines else ""


def _short(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def read_tail(path: Path, offset: int = 0) -> str:
    """The last few kilobytes of a log from `offset` on; empty where there is no log."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(offset, end - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
