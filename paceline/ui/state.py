"""What the records so far say of a run: position, speed, time left; not how that looks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.records.reader import Record

_WINDOW_S = 10.0  # of step time, for speed and shares
_WINDOW_STEPS = (5, 500)  # at least and at most
_SMOOTHED_STEPS = 20  # for loss and metrics
SHARES = {
    "data": ("data", "copy"),
    "compute": ("forward", "backward", "optimizer"),
    "exchange": ("exchange",),
}


class Window:
    """The recent steps of one rank, without the first of an attempt, which is slow."""

    def __init__(self) -> None:
        self._steps: deque[Record] = deque()
        self._seconds = 0.0
        self._warming_up = True

    def add(self, step: Record) -> None:
        self._steps.append(step)
        self._seconds += step["step_s"]
        least, most = _WINDOW_STEPS
        if self._warming_up and len(self._steps) > 2:
            self._warming_up = False
            self._drop()
        while len(self._steps) > least and (
            self._seconds - self._steps[0]["step_s"] > _WINDOW_S or len(self._steps) > most
        ):
            self._drop()

    def _drop(self) -> None:
        self._seconds -= self._steps.popleft()["step_s"]

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def step_s(self) -> float:
        return self._seconds / len(self._steps)

    @property
    def images_per_s(self) -> float:
        return sum(step["rows"] for step in self._steps) / max(self._seconds, 1e-9)

    def mean(self, read: Callable[[Record], float | None]) -> float:
        """The mean of `read(step)` over the last few steps, by rows; what is None is left out."""
        last = list(self._steps)[-_SMOOTHED_STEPS:]
        pairs = [(read(step), step["rows"]) for step in last if step["rows"]]
        known = [(value, rows) for value, rows in pairs if value is not None]
        rows = sum(rows for _, rows in known)
        return sum(value * rows for value, rows in known) / rows if rows else math.nan

    def shares(self) -> dict[str, float]:
        """Shares of the step time, 0 to 1."""
        return {
            name: sum(step["phases"].get(p, 0.0) for step in self._steps for p in parts)
            / max(self._seconds, 1e-9)
            for name, parts in SHARES.items()
        }


@dataclass
class RunState:
    """Folds the records of all ranks, in the order they are read."""

    start: Record | None = None
    step: Record | None = None  # of rank 0, the last
    last_eval: Record | None = None
    end: Record | None = None
    memory_bytes: dict[int, int] = field(default_factory=dict)  # by rank, of the last step
    windows: dict[int, Window] = field(default_factory=dict)  # by rank
    _eval_s: float = 0.0
    _evals: int = 0
    _epochs: int = 0

    def add(self, rank: int, record: Record) -> None:
        kind = record["kind"]
        if kind == "start":
            self.windows[rank] = Window()
        elif kind == "step":
            self.windows.setdefault(rank, Window()).add(record)
            self.memory_bytes[rank] = record.get("memory_bytes", 0)
        if rank == 0:
            self._add_main(kind, record)

    def _add_main(self, kind: str, record: Record) -> None:
        if kind == "start":
            self.start, self.step, self.end = record, None, None
        elif kind == "step":
            self.step = record
        elif kind == "eval":
            self.last_eval = record
            self._eval_s, self._evals = record["seconds"], self._evals + 1
        elif kind == "epoch":
            self._epochs += 1
        elif kind == "end":
            self.end = record

    @property
    def window(self) -> Window:
        return self.windows[0]

    @property
    def position(self) -> tuple[Record, Record]:
        """The start record and the last step; to be asked only when there is a step."""
        assert self.start is not None, "no start record yet"
        assert self.step is not None, "no step record yet"
        return self.start, self.step

    @property
    def steps_left(self) -> int:
        start, step = self.position
        return max(start["total_steps"] - step["step"], 0)

    @property
    def done(self) -> float:
        """The share of the steps that are done, 0 to 1."""
        start, step = self.position
        return min(step["step"] / max(start["total_steps"], 1), 1.0)

    @property
    def at_epoch_end(self) -> bool:
        start, step = self.position
        return step["step"] % max(start["steps_per_epoch"], 1) == 0

    @property
    def seconds_left(self) -> float:
        """Steps left at the recent speed, and evaluations as often as there were some so far."""
        start, _ = self.position
        epochs_left = math.ceil(self.steps_left / max(start["steps_per_epoch"], 1))
        evals_left = epochs_left * min(self._evals / self._epochs, 1) if self._epochs else 0
        return self.steps_left * self.window.step_s + evals_left * self._eval_s

    def shares(self) -> dict[str, float]:
        """Shares of the step time, the mean over ranks."""
        of_ranks = [window.shares() for window in self.windows.values() if len(window)]
        return {name: sum(s[name] for s in of_ranks) / len(of_ranks) for name in SHARES}

    def is_best(self, epoch: int) -> bool:
        """Whether the evaluation after this epoch was the best so far."""
        found = self.last_eval
        return found is not None and found["epoch"] == epoch and bool(found.get("best"))


def main_metric(metrics: dict[str, float], watched: str = "") -> str:
    """The metric that is shown first: the watched one, else accuracy where there is one, else the first, else ""."""
    if watched in metrics:
        return watched
    return "accuracy" if "accuracy" in metrics else next(iter(metrics), "")
