"""Where a run's progress is drawn: a terminal with a live line, or a stream of plain lines.

Both write to stderr and take the same calls; what to show is `follow.py`'s business.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import IO, Protocol

from rich.console import Console
from rich.text import Text

from paceline.records.reader import Record
from paceline.ui import progress, table
from paceline.ui.state import RunState
from paceline.ui.stream import write, write_text

STYLES = {"warning": "bold magenta", "error": "bold red", "note": "bold", "log": "dim"}
_ERASE_LINE = "\r\x1b[2K"


class Screen(Protocol):
    def say(self, lines: Iterable[tuple[str, str]]) -> None:
        """Lines that stay, as (kind, text); the kind is a label, or "" or "log" for none."""

    def epoch(self, record: Record, best: bool) -> None:
        """A row of the table."""

    def progress(self, state: RunState, quiet_s: float) -> None: ...

    def waiting(self, what: str, seconds: float) -> None:
        """There is no progress to show yet."""

    def draw(self) -> None:
        """Puts on the screen what was said since the last call."""

    def close(self) -> None: ...


class Terminal:
    """A terminal: lines scroll up, the progress line stays at the bottom.

    The line is drawn here and not by rich's Live, which hides the cursor: it would stay hidden
    after a SIGKILL.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._table = table.EpochTable()
        self._above: list[str] = []
        self._line = Text()
        self._drawn = ""
        self._gone = False

    def say(self, lines: Iterable[tuple[str, str]]) -> None:
        for kind, text in lines:
            self._above.append(self._render(styled(kind, text), wrap=kind in STYLES))

    def epoch(self, record: Record, best: bool) -> None:
        self._above += [
            self._render(row) for row in self._table.rows(record, best, self._console.width)
        ]

    def progress(self, state: RunState, quiet_s: float) -> None:
        self._line = progress.progress_line(state, self._console.width, quiet_s)

    def waiting(self, what: str, seconds: float) -> None:
        self._line = progress.waiting_line(what, seconds, self._console.width)

    def draw(self) -> None:
        """In one write, so that nothing flickers."""
        above, self._above = self._above, []
        line = self._render(self._line, end="")
        if self._gone or (not above and line == self._drawn):
            return
        erase = _ERASE_LINE if self._drawn else ""
        text = erase + "".join(above) + line
        self._gone = not write_text(self._console.file, text)
        self._drawn = line

    def close(self) -> None:
        self._line = Text()
        self.draw()

    def _render(self, text: Text, *, end: str = "\n", wrap: bool = False) -> str:
        """Without wrap, a long line is left to the terminal, where it can be selected whole."""
        with self._console.capture() as captured:
            self._console.print(text, end=end, soft_wrap=not wrap, highlight=False)
        return captured.get()


class Plain:
    """A pipe, a file, a dumb terminal: whole lines without escape codes, progress now and then."""

    def __init__(self, stream: IO[str], every_s: float = 10.0) -> None:
        self._stream = stream
        self._every_s = every_s
        self._next = time.monotonic() + every_s
        self._lines: list[str] = []
        self._last_progress = ""
        self._gone = False

    def say(self, lines: Iterable[tuple[str, str]]) -> None:
        self._lines += [styled(kind, text).plain for kind, text in lines]

    def epoch(self, record: Record, best: bool) -> None:
        self._lines.append(table.plain_row(record, best))

    def progress(self, state: RunState, quiet_s: float) -> None:
        if not self._is_time():
            return
        line = progress.plain_line(state, quiet_s)
        if line != self._last_progress:  # in a log, a line twice is no news
            self._lines.append(line)
        self._last_progress = line

    def waiting(self, what: str, seconds: float) -> None:
        if self._is_time():
            self._lines.append(f"{what}, {seconds:.0f} s")

    def draw(self) -> None:
        lines, self._lines = self._lines, []
        if lines and not self._gone:
            self._gone = not write(self._stream, lines)

    def close(self) -> None:
        self.draw()

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._every_s
        return True


def styled(kind: str, text: str) -> Text:
    """A line with its label; ANSI's named colours only, which a terminal's theme keeps readable."""
    if kind == "log":
        prefix, bracket, rest = text.partition("] ")
        return Text.assemble((prefix + bracket, "dim"), rest)
    if not kind:
        return Text(text)
    if kind in STYLES:
        return Text.assemble((f"{kind}: ", STYLES[kind]), text)
    return Text.assemble((kind.ljust(7), "dim"), text)


def open_screen(stream: IO[str], *, every_s: float = 10.0) -> Screen:
    """A Terminal where the stream is one that can move its cursor, else Plain."""
    if stream.isatty():
        console = Console(file=stream, force_terminal=True, force_jupyter=False)
        if not console.is_dumb_terminal:
            return Terminal(console)
    return Plain(stream, every_s)
