"""CSV files, one a kind of record: steps.csv, evaluations.csv, epochs.csv; numbers read back exactly."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.config.schema import RunConfig
from paceline.records.folder import RunFolder
from paceline.sinks.feed import KINDS, Point
from paceline.sinks.tracker import target

_FILES = {"step": "steps.csv", "eval": "evaluations.csv", "epoch": "epochs.csv"}


class Tables:
    rewrites = True

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self._to = target(folder, config, "csv")
        self._tables = {kind: _Table(self._to / _FILES[kind]) for kind in KINDS}

    def begin(self, run_id: str | None) -> str:
        self._to.mkdir(parents=True, exist_ok=True)
        for table in self._tables.values():
            table.clear()
        return str(self._to)

    def send(self, points: Sequence[Point]) -> None:
        for kind, table in self._tables.items():
            rows = [
                {"step": point.step, "time": point.time, **point.values}
                for point in points
                if point.kind == kind
            ]
            if rows:
                table.append(rows)

    def show(self, picture: Path) -> None:
        """A table holds no pictures."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """The rows are all there is."""

    def close(self) -> None:
        """Nothing is held open between two calls."""


class _Table:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)
        self._columns = []

    def append(self, rows: Sequence[Mapping[str, float]]) -> None:
        """A column that comes later is empty in the rows before it."""
        names = dict.fromkeys(name for row in rows for name in row)
        columns = [*self._columns, *(name for name in names if name not in self._columns)]
        if columns != self._columns:
            self._widen(columns)
        with open(self._path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, columns, lineterminator="\n").writerows(rows)

    def _widen(self, columns: list[str]) -> None:
        before: list[dict[str, str]] = []
        if self._columns:
            with open(self._path, newline="", encoding="utf-8") as file:
                before = list(csv.DictReader(file))
        partial = self._path.with_name(f".{self._path.name}.partial")
        with open(partial, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(before)
        os.replace(partial, self._path)
        self._columns = columns
