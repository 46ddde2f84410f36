"""The ranks' own output on its way to the screen: merged over ranks, limited, without tracebacks.

A traceback stays in the rank's log; only its last line is passed on. And not even that of what ends
a rank, since the launcher tells the first cause of a failure.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.records.reader import LineTail
from paceline.ui import text

_MERGE_S = 1.0  # how long a line waits for the same line of other ranks
_BURST_LINES = 200  # of a rank, shown at once
_LINES_PER_S = 40.0  # and from then on
_REPORT_S = 1.0  # without a hidden line, before the hidden ones are counted out
_REPORT_AT_LATEST_S = 10.0
_LINE_CHARACTERS = 500
_LINE_BYTES = 64 << 10  # kept of one line before it is cut for the screen

_TORCH_PREFIX = re.compile(rb"^\[rank\d+\]: ?")  # torch puts it before its tracebacks
_CHAINED = (
    b"During handling of the above exception",
    b"The above exception was the direct cause",
)


@dataclass
class Line:
    """A line and the ranks that wrote it."""

    text: str
    seen: float
    ranks: set[int] = field(default_factory=set)
    traceback: bool = False  # it ends a traceback, which the log has


class LogReader:
    """New lines of one rank's log, with tracebacks taken out and floods limited."""

    def __init__(self, path: Path, *, from_start: bool) -> None:
        self.path = path
        self._tail = LineTail(path, from_start=from_start, max_line_bytes=_LINE_BYTES)
        self._in_traceback = False
        self._allowance = float(_BURST_LINES)
        self._polled = 0.0
        self._hidden = 0
        self._hidden_since = self._hidden_last = 0.0

    def poll(self, now: float) -> list[Line]:
        self._allowance += (now - self._polled) * _LINES_PER_S
        self._allowance = min(self._allowance, _BURST_LINES)
        self._polled = now
        lines: list[Line] = []
        for raw in self._tail.poll():
            raw = _TORCH_PREFIX.sub(b"", raw)
            if self._allowance < 1:
                self._hide(now)
                continue
            if lines and lines[-1].traceback and raw.startswith(_CHAINED):
                lines.pop()  # the exception that counts comes last
            line = self._line(raw, now)
            if line is not None:
                self._allowance -= 1
                lines.append(line)
        return lines

    @property
    def behind(self) -> bool:
        return self._tail.behind

    def hidden(self, now: float, *, last: bool = False) -> int:
        """How many lines a flood has hidden, once it is over or has gone on for a while; else 0."""
        quiet, since = now - self._hidden_last, now - self._hidden_since
        if not self._hidden or not (last or quiet >= _REPORT_S or since >= _REPORT_AT_LATEST_S):
            return 0
        hidden, self._hidden = self._hidden, 0
        return hidden

    def _hide(self, now: float) -> None:
        if not self._hidden:
            self._hidden_since = now
        self._hidden += 1
        self._hidden_last = now

    def _line(self, raw: bytes, now: float) -> Line | None:
        """None for a line that is not passed on."""
        shown = raw.decode("utf-8", errors="replace").rstrip("\r")
        shown = shown.rpartition("\r")[2]  # of a bar that redraws itself, its last state
        if not shown.strip() or raw.startswith(_CHAINED):
            return None
        if "Traceback (most recent call last):" in shown or shown.endswith("call first):"):
            self._in_traceback = True
            return None
        if self._in_traceback and shown[0].isspace():
            return None
        ended, self._in_traceback = self._in_traceback, False
        return Line(_shown(shown), now, traceback=ended)


def _shown(line: str) -> str:
    return text.harmless(line, _LINE_CHARACTERS).rstrip()


class Merger:
    """Holds lines for a moment, so that the same line of several ranks is shown once."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._waiting: deque[Line] = deque()
        self._by_text: dict[str, list[Line]] = defaultdict(list)

    def add(self, rank: int, line: Line) -> None:
        """A rank that writes a line twice is shown twice."""
        for same in self._by_text[line.text]:
            if rank not in same.ranks:
                same.ranks.add(rank)
                return
        line.ranks.add(rank)
        self._waiting.append(line)
        self._by_text[line.text].append(line)

    def ready(self, now: float, *, last: bool = False) -> Iterable[Line]:
        """The lines that have waited long enough or came from every rank, in their order."""
        while self._waiting:
            line = self._waiting[0]
            if not last and len(line.ranks) < self._num_ranks and now - line.seen < _MERGE_S:
                return
            self._waiting.popleft()
            same = self._by_text[line.text]
            same.remove(line)
            if not same:
                del self._by_text[line.text]
            yield line


@dataclass(frozen=True)
class Told:
    """The words of the failures that ended ranks: the launcher says them, so the logs need not."""

    sentences: frozenset[str]
    types: frozenset[str]

    @classmethod
    def read(cls, folder: Path) -> Told:
        paths = sorted(folder.glob("failure-*.json"))
        failures = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        words = [f"{f['what']}\n  hint: {f['hint']}".splitlines() for f in failures]
        sentences = frozenset(_shown(line) for lines in words for line in lines)
        return cls(sentences, frozenset(failure["type"] for failure in failures))

    def has(self, line: Line) -> bool:
        if line.traceback:
            return line.text.partition(":")[0].rpartition(".")[2] in self.types
        return line.text in self.sentences


class Logs:
    """The logs of all ranks as one stream of lines for people."""

    def __init__(self, paths: list[Path], *, from_start: bool) -> None:
        self._readers = [LogReader(path, from_start=from_start) for path in paths]
        self._merger = Merger(len(paths))
        self._folder = paths[0].parent

    def poll(self, now: float, *, last: bool = False) -> list[str]:
        for rank, reader in enumerate(self._readers):
            for line in reader.poll(now):
                self._merger.add(rank, line)
        ready = list(self._merger.ready(now, last=last))
        if ready:
            told = Told.read(self._folder)
            ready = [line for line in ready if not told.has(line)]
        return [self._show(line) for line in ready] + self._floods(now, last)

    @property
    def behind(self) -> bool:
        return any(reader.behind for reader in self._readers)

    def _show(self, line: Line) -> str:
        shown = f"[{text.rank_names(line.ranks)}] {line.text}"
        if line.traceback:
            shown += f"  (traceback in {self._name(min(line.ranks))})"
        return shown

    def _floods(self, now: float, last: bool) -> list[str]:
        hidden = {rank: r.hidden(now, last=last) for rank, r in enumerate(self._readers)}
        hidden = {rank: number for rank, number in hidden.items() if number}
        if not hidden:
            return []
        total = text.count(sum(hidden.values()))
        if len(hidden) == 1:
            return [f"… {total} more lines in {self._name(next(iter(hidden)))}"]
        return [f"… {total} more lines in the logs of {text.rank_names(hidden)}"]

    def _name(self, rank: int) -> str:
        path = self._readers[rank].path
        return f"{path.parent.name}/{path.name}"
