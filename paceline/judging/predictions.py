"""Predictions as ranks left them, read in pieces; and as a CSV table."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from paceline.judging.cells import cell

_ROWS = 4096  # read at once


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """
    names: the files, or the numbers of the samples. task: classification, multi-label or regression.
    class_names: of the columns of `values`. errors: by row, why a sample could not be read; its values are nan.
    """

    names: Sequence[str]
    task: str
    class_names: Sequence[str]
    width: int
    errors: dict[int, str]
    parts: Sequence[np.ndarray]

    @staticmethod
    def read(
        out: Path, *, names: Sequence[str], task: str, class_names: Sequence[str]
    ) -> Predictions:
        """What the ranks of a job left in `out`; values stay on the disk."""
        found = json.loads((out / "found.json").read_text(encoding="utf-8"))
        width = found["width"]
        parts, errors = [], {}
        for rank in range(found["ranks"]):
            file = out / f"values-{rank}.bin"
            if file.stat().st_size:
                parts.append(np.memmap(file, dtype=found["dtype"], mode="r").reshape(-1, width))
            for line in (out / f"errors-{rank}.jsonl").read_text(encoding="utf-8").splitlines():
                error = json.loads(line)
                errors[error["index"]] = error["why"]
        columns = list(class_names) if len(class_names) == width else [str(i) for i in range(width)]
        return Predictions(
            names=names, task=task, class_names=columns, width=width, errors=errors, parts=parts
        )

    def __len__(self) -> int:
        return len(self.names)

    def pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, values) of some thousand rows at a time."""
        first = 0
        for part in self.parts:
            for start in range(0, len(part), _ROWS):
                rows = np.array(part[start : start + _ROWS])
                for row in [row for row in self.errors if first <= row < first + len(rows)]:
                    rows[row - first] = np.nan
                yield first, rows
                first += len(rows)

    def loaded(self) -> Predictions:
        """The same with all values in memory."""
        pieces = [rows for _, rows in self.pieces()]
        return dataclasses.replace(self, parts=[np.concatenate(pieces)])

    @property
    def values(self) -> np.ndarray:
        """(samples, columns): probabilities of classes or labels, or the numbers that the model gives."""
        return self.loaded().parts[0]

    @property
    def classes(self) -> list[str | None]:
        """The likeliest class of each sample; None where it could not be read."""
        best = self.values.argmax(axis=1).tolist()
        return [None if row in self.errors else self.class_names[c] for row, c in enumerate(best)]


def write_csv(found: Predictions, file: IO[str], *, top: int = 0) -> None:
    """A row a sample, in their order; see docs/guide/predict.md for the columns. top: 0 for every class."""
    table = csv.writer(file)
    names = [cell(name) for name in found.class_names]
    top = min(top, found.width) if found.task == "classification" else 0
    table.writerow(["path", *_titles(found, top), "error"])
    for first, rows in found.pieces():
        for number, row in enumerate(rows, start=first):
            error = found.errors.get(number)
            if error is None:
                table.writerow(
                    [cell(found.names[number]), *_cells(found.task, names, row, top), ""]
                )
            else:
                blank = [""] * len(_titles(found, top))
                table.writerow([cell(found.names[number]), *blank, cell(error)])


def _titles(found: Predictions, top: int) -> list[str]:
    if found.task == "regression":
        return ["value"] if found.width == 1 else [f"value_{i}" for i in range(found.width)]
    each = [cell(f"p({name})") for name in found.class_names]
    if found.task == "multi-label":
        return ["labels", *each]
    if top:
        return [f"{what}_{k}" for k in range(1, top + 1) for what in ("class", "probability")]
    return ["class", "probability", *each]


def _cells(task: str, names: Sequence[str], row: np.ndarray, top: int) -> list[Any]:
    values = [_number(value) for value in row.tolist()]
    if task == "regression":
        return values
    if task == "multi-label":
        return [";".join(name for name, p in zip(names, row, strict=True) if p > 0.5), *values]
    if top:
        order = np.argsort(-row, kind="stable")[:top].tolist()
        return [text for c in order for text in (names[c], values[c])]
    best = int(row.argmax())
    return [names[best], values[best], *values]


def _number(value: float) -> str:
    return f"{value:.7g}"
