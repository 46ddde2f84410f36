"""Makes points for trackers out of the records of rank 0; sends them nowhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.records.reader import Record, follow

KINDS = ("step", "eval", "epoch")


@dataclass(frozen=True)
class Point:
    """Some values at one moment of a run.

    kind, at: which record it is made of: the step or the evaluation of step `at`, or epoch `at`.
    step: the optimizer step that it belongs to. time: unix seconds. values: by name, such as train/loss.
    """

    kind: str
    at: int
    step: int
    time: float
    values: Mapping[str, float]


class Feed:
    """The points of a run that count, each once, while its records grow.

    Records of steps that were taken again later are left out. Only an attempt that begins after the feed was
    opened can void points that were given out already: then `rewound` is true.
    """

    def __init__(self, path: Path) -> None:
        self.rewound = False
        self._follower = follow(path)
        self._limits = _limits(path)
        self._starts = 0
        self._given = dict.fromkeys(KINDS, 0)
        self._step = 0

    def poll(self) -> list[Point]:
        """The points whose records were completed since the last poll."""
        points = []
        for record in self._follower.poll():
            if record["kind"] == "start":
                self._begin(record)
            elif record["kind"] in KINDS:
                point = self._point(record)
                if point.at <= self._limit(point.kind):
                    self._given[point.kind] = max(self._given[point.kind], point.at)
                    points.append(point)
        return points

    @property
    def behind(self) -> bool:
        return self._follower.behind

    def _begin(self, start: Record) -> None:
        self._starts += 1
        self._step = start["step"]
        if self._starts > len(self._limits):
            reached = _reached(start)
            self.rewound |= any(self._given[kind] > reached[kind] for kind in KINDS)

    def _limit(self, kind: str) -> float:
        """The last step (epoch) that no later attempt takes again."""
        return self._limits[self._starts][kind] if self._starts < len(self._limits) else math.inf

    def _point(self, record: Record) -> Point:
        kind = record["kind"]
        if kind != "epoch":
            self._step = record["step"]
        at = record["epoch"] if kind == "epoch" else record["step"]
        return Point(kind, at, self._step, record["time"], dict(_values(record)))


def _limits(path: Path) -> list[dict[str, float]]:
    """By number of starts that came before a record: the last step and epoch that still count there."""
    follower, starts = follow(path), []
    while True:
        starts += [_reached(record) for record in follower.poll() if record["kind"] == "start"]
        if not follower.behind:
            break
    for i in range(len(starts) - 1, 0, -1):
        starts[i - 1] = {kind: min(starts[i - 1][kind], starts[i][kind]) for kind in KINDS}
    return starts


def _reached(start: Record) -> dict[str, float]:
    """What had been done when an attempt began; what came after it is taken again."""
    step, epoch = start["step"], start["step"] / start["steps_per_epoch"]
    return {"step": step, "eval": step, "epoch": epoch}


def _values(record: Record) -> Iterator[tuple[str, float]]:
    kind = record["kind"]
    if kind == "step":
        yield from _numbers("train/loss", record.get("loss"))
        yield from _numbers("train", record.get("metrics"))
        yield from _numbers("time", {f"{k}_s": v for k, v in record["phases"].items()})
        for name in ("epoch", "samples", "lr", "gradient_norm", "loss_scale", "skipped"):
            yield from _numbers(name, record.get(name))
        for name in ("step_s", "memory_bytes"):
            yield from _numbers(name, record.get(name))
    elif kind == "eval":
        yield from _numbers("eval/loss", record["loss"])
        yield from _numbers("eval", record["metrics"])
        yield from _numbers("time/eval_s", record["seconds"])
    else:
        yield from _numbers("epoch/train_loss", record["train_loss"])
        yield from _numbers("epoch/train", record["train_metrics"])
        for name in ("images_per_s", "seconds"):
            yield from _numbers(f"epoch/{name}", record[name])


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers in a value by name; tables within it are gone through, all else is left out."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(f"{name}/{key}", part)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, value
