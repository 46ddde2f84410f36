"""Brings the points of a run to one tracker, and goes on where it stopped, whatever fails."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from paceline.records.folder import RunFolder, write_atomically
from paceline.sinks.feed import Feed
from paceline.sinks.tracker import Tracker

POLL_S = 1.0
LONGEST_WAIT_S = 30.0  # between two tries, where a tracker is down
PATIENCE_S = 20.0  # for a tracker that is down when the run has ended

logger = logging.getLogger("paceline.sinks")


class Courier:
    """Serves one tracker. say: shows the user a sentence, at most one an outage."""

    def __init__(
        self, name: str, tracker: Tracker, folder: RunFolder, say: Callable[[str], None]
    ) -> None:
        self._name, self._tracker, self._folder = name, tracker, folder
        self._say = say
        self._feed: Feed | None = None
        self._run_id: str | None = None
        self._sent: dict[str, int] = {}  # by kind of point: the last step or epoch
        self._is_shown = False
        self._is_down = False

    def run(self, ended: threading.Event, *, patience_s: float = PATIENCE_S) -> bool:
        """Until `ended` is set and all is delivered: true; or until patience after that is over: false."""
        wait_s, deadline = POLL_S, float("inf")
        while True:
            last = ended.is_set()  # asked before reading: what was written until then is read
            if last:
                deadline = min(deadline, time.monotonic() + patience_s)
            try:
                self._deliver()
                if last:
                    self._tracker.finish(self._result())
                    self._save()
                    return True
                wait_s = POLL_S
            except Exception as error:  # noqa: BLE001 (a tracker may raise anything, and costs no training)
                self._fail(error)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            if last and time.monotonic() + wait_s > deadline:
                return False
            if last:
                time.sleep(wait_s)
            else:
                ended.wait(wait_s)

    def _deliver(self) -> None:
        """Everything that is in the records now."""
        feed = self._feed or self._begin()
        while True:
            points = [p for p in feed.poll() if p.at > self._sent.get(p.kind, 0)]
            if feed.rewound and self._tracker.rewrites:
                self._tracker.close()
                feed = self._begin()
                continue
            if points:
                self._tracker.send(points)
                self._sent |= {point.kind: point.at for point in points}
                self._save()
            if not feed.behind:
                break
        if not self._is_shown and self._folder.inputs.exists():
            self._tracker.show(self._folder.inputs)
            self._is_shown = True
            self._save()
        if self._is_down:
            self._is_down = False
            self._say(f"{self._name} is back, and has everything")

    def _begin(self) -> Feed:
        before = self._read()
        self._run_id = self._tracker.begin(before.get("run"))
        again = self._tracker.rewrites
        self._sent = {} if again else dict(before.get("sent", {}))
        self._is_shown = not again and bool(before.get("shown"))
        self._save()
        self._feed = Feed(self._folder.records(0))
        return self._feed

    def _fail(self, error: Exception) -> None:
        logger.warning("%s failed", self._name, exc_info=error)
        self._tracker.close()
        self._feed = None
        if not self._is_down:
            self._is_down = True
            reason = (str(error).splitlines() or [""])[0][:200]
            self._say(
                f"{self._name} does not take the records ({type(error).__name__}: {reason});"
                " training goes on, and they are sent when it does"
            )

    def _read(self) -> dict[str, Any]:
        path = self._folder.sent(self._name)
        state: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return state

    def _save(self) -> None:
        path = self._folder.sent(self._name)
        path.parent.mkdir(exist_ok=True)
        state = {"run": self._run_id, "sent": self._sent, "shown": self._is_shown}
        write_atomically(path, json.dumps(state) + "\n")

    def _result(self) -> dict[str, Any]:
        path = self._folder.result
        result: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return result
