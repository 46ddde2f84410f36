"""What an evaluation found: numbers, classes, confusions, calibration; and how that is written down."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.judging.cells import cell
from paceline.records.folder import write_atomically

FORMAT = 1
_MOST_CONFUSED = 20  # pairs in evaluation.json


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """
    run: the run folder, empty for a weights file alone. weights: final, step-… or the file's name. data: its name.
    metrics: by name, without the loss. bounds: how far metrics from histograms may be from the exact ones.
    per_class: name, samples, and what was measured of each class or label. confusion: (classes, classes), rows the true
    class; None where there is none. calibration: a bin of confidence each. folder: where it was written, if it was.
    """

    run: str
    weights: str
    path: str
    time: str
    data: str
    task: str
    ranks: int
    count: int
    seconds: float
    loss: float
    metrics: Mapping[str, float]
    bounds: Mapping[str, float]
    class_names: Sequence[str]
    per_class: Sequence[Mapping[str, Any]]
    calibration: Sequence[Mapping[str, float]]
    confusion: np.ndarray | None = field(default=None, repr=False)
    folder: Path | None = None

    def confused(self, most: int = _MOST_CONFUSED) -> list[dict[str, Any]]:
        """The pairs of classes that were taken for each other most often: true, predicted, count, share of the true."""
        if self.confusion is None:
            return []
        wrong = self.confusion - np.diag(np.diag(self.confusion))
        totals = self.confusion.sum(axis=1)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = [divmod(int(place), len(wrong)) for place in order]
        return [
            {
                "true": self.class_names[true],
                "predicted": self.class_names[called],
                "count": int(wrong[true, called]),
                "share": float(wrong[true, called] / totals[true]),
            }
            for true, called in pairs
            if wrong[true, called] > 0
        ]

    def to_json(self) -> dict[str, Any]:
        """All but the confusion matrix, of which it has the most frequent pairs."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("confusion", "folder"):
            del plain[name]
        return {"format": FORMAT, **_finite(plain), "confused": self.confused()}


def make_evaluated(out: Path, *, subject: Mapping[str, Any], data: str) -> Evaluated:
    """From what rank 0 left in `out`."""
    found = json.loads((out / "found.json").read_text(encoding="utf-8"))
    with np.load(out / "arrays.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    names = found.pop("classes")
    return Evaluated(
        **subject,
        data=data,
        **found,
        bounds={
            name.removesuffix("_bound"): float(value)
            for name, value in arrays.items()
            if name.endswith("_bound")
        },
        class_names=names,
        per_class=_per_class(names, arrays),
        calibration=_calibration(arrays),
        confusion=arrays.get("confusion"),
    )


def write_evaluated(evaluated: Evaluated, folder: Path) -> None:
    """evaluation.json, and confusion.csv where there is a matrix. Raises UserError where that cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(evaluated.to_json(), indent=1, allow_nan=False) + "\n"
        if evaluated.confusion is not None:
            _write_confusion(evaluated, folder / "confusion.csv")
        write_atomically(folder / "evaluation.json", text)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written: {(error.strerror or str(error)).lower()}",
            "name another folder with -o",
        ) from error


def _write_confusion(evaluated: Evaluated, path: Path) -> None:
    assert evaluated.confusion is not None, "the caller has looked"
    names = [cell(name) for name in evaluated.class_names]
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with open(partial, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["true \\ predicted", *names])
        for name, row in zip(names, evaluated.confusion.astype(int).tolist(), strict=True):
            table.writerow([name, *row])
    os.replace(partial, path)


def _per_class(names: Sequence[str], arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    if "class_count" not in arrays:
        return []
    columns = {
        "samples": "class_count",
        "predicted": "class_predicted",
        "recall": "class_recall",
        "precision": "class_precision",
        "f1": "class_f1",
        "auc": "class_auc",
        "average_precision": "class_average_precision",
    }
    rows: list[dict[str, Any]] = [{"name": name} for name in names]
    for title, key in columns.items():
        for row, value in zip(rows, arrays.get(key, np.zeros(0)).tolist(), strict=False):
            row[title] = int(value) if title in ("samples", "predicted") else value
    return rows


def _calibration(arrays: Mapping[str, np.ndarray]) -> list[dict[str, float]]:
    if "reliability_count" not in arrays:
        return []
    count = arrays["reliability_count"].tolist()
    confidence = arrays["reliability_confidence"].tolist()
    accuracy = arrays["reliability_accuracy"].tolist()
    width = 1 / len(count)
    return [
        {"from": b * width, "to": (b + 1) * width, "count": n, "confidence": c, "accuracy": a}
        for b, (n, c, a) in enumerate(zip(count, confidence, accuracy, strict=True))
    ]


def _finite(value: Any) -> Any:
    """The same with None for what JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
