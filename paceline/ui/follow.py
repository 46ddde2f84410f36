"""Shows a run while it goes on: follows its run folder and puts what is new on the screen."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from paceline.records.folder import RunFolder
from paceline.records.reader import Record, follow
from paceline.ui import text
from paceline.ui.logs import Line, Logs, Merger
from paceline.ui.opening import opening, resumed
from paceline.ui.screen import Screen, open_screen
from paceline.ui.state import RunState

POLL_S = 0.2
_MOST_POLLS_AT_THE_END = 50


class View:
    """The screen of one run. `poll` it about five times a second; threads may share it.

    from_start: False leaves out what is in the folder already: the earlier part of a run that is
    resumed. now: a clock in seconds.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        num_ranks: int,
        screen: Screen | None = None,
        from_start: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        ranks = range(num_ranks)
        self.state = RunState()
        self._screen = open_screen(sys.stderr) if screen is None else screen
        self._num_ranks = num_ranks
        self._records = [follow(folder.records(rank), from_start=from_start) for rank in ranks]
        self._logs = Logs([folder.log(rank) for rank in ranks], from_start=from_start)
        self._warnings = Merger(num_ranks)
        self._now = now
        self._last_step = now()
        self._opened = False
        self._lock = threading.RLock()
        self._wait_for(f"starting {num_ranks} rank{'s' if num_ranks > 1 else ''}")
        self._screen.say([("run", text.harmless(str(folder.path)))])

    def poll(self) -> None:
        """Reads what is new and draws it."""
        with self._lock:
            self._read()
            self._draw()

    def notice(self, line: str, kind: str = "note") -> None:
        """Shows a line of the launcher's own, such as why ranks are restarted.

        kind: note, warning or error.
        """
        with self._lock:
            self._read()
            self._screen.say([(kind, text.harmless(line))])
            self._draw()

    def close(self) -> None:
        """Shows what is left and takes the progress line away."""
        with self._lock:
            for _ in range(_MOST_POLLS_AT_THE_END):
                self._read(last=True)
                if not self._logs.behind and not any(r.behind for r in self._records):
                    break
            self._screen.close()

    def _read(self, *, last: bool = False) -> None:
        now = self._now()
        for rank, records in enumerate(self._records):
            for record in records.poll():
                self.state.add(rank, record)
                self._show(rank, record, now)
        for line in self._warnings.ready(now, last=last):
            self._screen.say([("warning", self._of_ranks(line))])
        self._screen.say([("log", line) for line in self._logs.poll(now, last=last)])

    def _draw(self) -> None:
        now = self._now()
        if self.state.step is None or self.state.end is not None:
            self._screen.waiting(self._waiting_for, now - self._waiting_since)
        else:
            self._screen.progress(self.state, now - self._last_step)
        self._screen.draw()

    def _show(self, rank: int, record: Record, now: float) -> None:
        kind = record["kind"]
        if kind == "warning":
            self._warnings.add(rank, Line(text.harmless(record["text"], 1000), now))
        elif rank == 0:
            self._show_main(kind, record, now)

    def _show_main(self, kind: str, record: Record, now: float) -> None:
        if kind == "step":
            self._last_step = now
        elif kind == "start":
            self._show_start(record)
        elif kind == "epoch":
            self._screen.epoch(record, self.state.is_best(record["epoch"]))
        elif kind == "note":
            self._screen.say([("note", text.harmless(record["text"], 1000))])
        elif kind == "checkpoint" and not record["ok"]:
            failed = f"the checkpoint of step {record['step']} was not saved: {record['error']}"
            self._screen.say([("warning", f"{text.harmless(failed, 1000)}; training goes on")])
        elif kind == "end":
            self._wait_for("finishing" if record["status"] == "finished" else "stopping")

    def _show_start(self, start: Record) -> None:
        if not self._opened:
            self._screen.say(opening(start))
        if self._opened or start.get("resumed_from"):
            self._screen.say([("note", resumed(start))])
        self._opened = True
        self._wait_for("waiting for the first step")

    def _wait_for(self, what: str) -> None:
        self._waiting_for, self._waiting_since = what, self._now()

    def _of_ranks(self, line: Line) -> str:
        """Rank 0 speaks for all."""
        if line.ranks == {0} or len(line.ranks) == self._num_ranks:
            return line.text
        return f"[{text.rank_names(line.ranks)}] {line.text}"


@contextlib.contextmanager
def showing(
    folder: RunFolder,
    *,
    num_ranks: int,
    screen: Screen | None = None,
    from_start: bool = True,
) -> Iterator[View]:
    """Shows the run on stderr while the block runs, from a thread of its own."""
    view = View(folder, num_ranks=num_ranks, screen=screen, from_start=from_start)
    stop = threading.Event()
    thread = threading.Thread(
        target=_poll_until, args=(view, stop), name="paceline-view", daemon=True
    )
    thread.start()
    try:
        yield view
    finally:
        stop.set()
        thread.join()


def _poll_until(view: View, stop: threading.Event) -> None:
    """A defect in the display is shown in full, but costs no training."""
    try:
        while not stop.wait(POLL_S):
            view.poll()
        view.close()
    except Exception:  # noqa: BLE001 - the run matters more than its picture
        print("warning: the progress display failed; training goes on", file=sys.stderr)
        traceback.print_exc()
