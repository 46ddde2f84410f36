"""Images by a CSV file of paths and labels: classes, numbers to predict, or several labels a sample.

    path,label
    photos/1.jpg,cat
    photos/2.jpg,dog

Paths are relative to the CSV. `data.columns` gives the columns' names where they have others.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config.schema import DataConfig
from paceline.data.decode import View
from paceline.data.sources.base import Source
from paceline.data.sources.files import (
    ImageFiles,
    check_image_size,
    index_of,
    view_of,
    whole_images,
)
from paceline.data.sources.held_out import hold_out
from paceline.data.sources.kind import Opened
from paceline.errors import UserError, nearest

COLUMNS = {"path": "path", "label": "label", "split": "split", "weight": "weight"}
TRAIN, EVALUATION = ("train", "training"), ("val", "valid", "validation", "dev", "test")
SEPARATOR = "|"  # between the labels of one sample


@dataclass(frozen=True)
class Table:
    """A CSV's columns, as text. labels: by column name. splits, weights: None where there is no such column."""

    file: Path
    paths: list[str]
    labels: dict[str, list[str]]
    splits: list[str] | None
    weights: list[str] | None

    def __len__(self) -> int:
        return len(self.paths)

    def line(self, row: int) -> str:
        return f"{self.file}:{row + 2}"


@dataclass(frozen=True)
class Labels:
    """What is to be learned: targets, a row a sample; classes are empty for numbers."""

    targets: np.ndarray
    classes: Sequence[str]
    multi_label: bool = False


def open_csv(argument: str, config: DataConfig) -> Opened:
    check_image_size(f"csv:{argument}", config)
    table = read_table(argument, config, "data.source")
    labels = read_labels(table, config)
    _check_more_than_one(table, labels)
    train, evaluation, notes = _split(table, labels, config)
    return Opened(
        train=_source(
            table, labels, config, train, None if whole_images(config) else view_of(config)
        ),
        evaluation=_source(table, labels, config, evaluation, view_of(config))
        if len(evaluation)
        else None,
        notes=notes,
    )


def open_evaluation_csv(argument: str, config: DataConfig, train: Source) -> Source:
    """The rows of the CSV's evaluation split where it has one, else all, with the classes of the training set."""
    check_image_size(f"csv:{argument}", config)
    table = read_table(argument, config, "data.eval_source")
    labels = read_labels(table, config, classes=train.class_names, multi_label=train.multi_label)
    rows = np.arange(len(table))
    if table.splits is not None:
        _, rows, _ = _by_column(table, table.splits)
    return _source(table, labels, config, rows, view_of(config))


def _source(
    table: Table, labels: Labels, config: DataConfig, rows: np.ndarray, view: View | None
) -> ImageFiles:
    index = index_of(table.paths, labels.targets, labels.classes, root=str(table.file.parent))
    source = ImageFiles(index, view, rows, name=f"csv:{table.file}")
    source.multi_label = labels.multi_label
    if table.weights is not None:
        weights = _numbers(table, table.weights, "weight")
        source.sample_weights = weights[rows]
    return source


def _split(
    table: Table, labels: Labels, config: DataConfig
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """(training rows, evaluation rows, notes) by the split column where there is one, else by val_fraction."""
    if table.splits is not None:
        return _by_column(table, table.splits)
    num_classes = 0 if labels.multi_label else len(labels.classes)
    parts = hold_out(labels.targets, config.val_fraction, str(table.file), num_classes)
    notes = list(parts.notes)
    if parts.num_held_out:
        notes.append(
            f"{table.file} has no split column: {parts.num_held_out} of its {len(table)} rows, the "
            "same each time, are held out for evaluation"
        )
    return parts.kept, parts.out, notes


def _by_column(table: Table, splits: Sequence[str]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    names = np.array([name.strip().lower() for name in splits])
    for row, name in enumerate(names):
        if name not in (*TRAIN, *EVALUATION):
            raise UserError(
                f"{table.line(row)} has the split {splits[row]!r}",
                f"write {TRAIN[0]}, {' or '.join(EVALUATION)}",
            )
    train = np.flatnonzero(np.isin(names, TRAIN))
    judges = next((name for name in EVALUATION if (names == name).any()), None)
    if len(train) == 0:
        raise UserError(f"no row of {table.file} is in the split train", "mark some")
    evaluation = np.flatnonzero(names == judges) if judges else np.arange(0)
    left = len(names) - len(train) - len(evaluation)
    notes = [f"{left} rows of {table.file} are in neither train nor {judges}"] if left else []
    return train, evaluation, notes


def read_table(argument: str, config: DataConfig, setting: str) -> Table:
    if not argument:
        raise UserError(f'{setting} = "csv:" names no file', "write csv:PATH")
    file = Path(argument).expanduser()
    names = {**COLUMNS, **columns(config.columns)}
    label_names = names["label"] if isinstance(names["label"], list) else [names["label"]]
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.DictReader(text, strict=True)
            found = reader.fieldnames or []
            for name in (names["path"], *label_names, *columns(config.columns).values()):
                for one in name if isinstance(name, list) else [name]:
                    if one not in found:
                        raise UserError(
                            f"{file} has no column {one!r}",
                            f"its columns are {', '.join(found)}; name yours, for example "
                            '--set data.columns={path="file",label="kind"}',
                        )
            wanted = [names["path"], *label_names]
            wanted += [names[n] for n in ("split", "weight") if names[n] in found]
            read: dict[str, list[str]] = {name: [] for name in wanted}
            for number, row in enumerate(reader):
                _check_row(file, number, row, names["path"])
                for name, values in read.items():
                    values.append(row[name].strip())
    except FileNotFoundError as error:
        near = [p.name for p in file.parent.glob("*.csv")] if file.parent.is_dir() else []
        raise UserError(f"{setting}: {file} does not exist", nearest(file.name, near)) from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {file}: {error}", "give a CSV file in UTF-8") from error
    if not read[names["path"]]:
        raise UserError(f"{file} has no rows", "add a line a sample below the header")
    table = Table(
        file,
        read[names["path"]],
        {name: read[name] for name in label_names},
        read.get(names["split"]),
        read.get(names["weight"]),
    )
    _check_files(table)
    return table


def columns(setting: Mapping[str, Any]) -> dict[str, Any]:
    """`data.columns`, checked: which columns hold what."""
    for name, value in setting.items():
        if name not in COLUMNS:
            raise UserError(f"data.columns has {name!r}", nearest(name, list(COLUMNS)))
        several = name == "label" and isinstance(value, list) and value
        if not (isinstance(value, str) or (several and all(isinstance(v, str) for v in value))):
            raise UserError(
                f"data.columns.{name} = {value!r} names no column",
                "give a column's name, for label also a list of them",
            )
    return dict(setting)


def _check_row(file: Path, number: int, row: dict[str, Any], path: str) -> None:
    if None in row or any(value is None for value in row.values()) or not row[path].strip():
        raise UserError(
            f"{file}:{number + 2} has {'too many' if None in row else 'missing'} values",
            "give every row one value a column; quote values with commas",
        )


def _check_files(table: Table) -> None:
    folder = table.file.parent
    missing = [path for path in table.paths if not os.path.exists(os.path.join(folder, path))]
    if missing:
        raise UserError(
            f"{len(missing)} of the {len(table)} files in {table.file} do not exist, the first is "
            f"{os.path.join(folder, missing[0])}",
            "paths are relative to the CSV's folder; correct them or remove the rows",
        )


def _check_more_than_one(table: Table, labels: Labels) -> None:
    if labels.classes and not labels.multi_label and len(labels.classes) < 2:
        raise UserError(
            f"every sample of {table.file} has the class {labels.classes[0]!r}",
            "add samples of another class, or name another column in data.columns.label",
        )


def read_labels(
    table: Table, config: DataConfig, classes: Sequence[str] = (), multi_label: bool = False
) -> Labels:
    """classes, multi_label: of the training set, for a set for evaluation."""
    names, values = list(table.labels), list(table.labels.values())
    kind: str = config.label_kind
    if kind == "auto":
        kind = "labels" if multi_label else _kind(values)
    if kind == "numbers":
        numbers = np.stack([_numbers(table, v, n) for n, v in table.labels.items()], axis=1)
        targets = numbers.astype(np.float32)
        return Labels(targets if len(names) > 1 else targets[:, 0], ())
    if kind == "labels" and len(names) > 1:
        return Labels(_flags(table), names, multi_label=True)
    if len(names) > 1:
        raise UserError(
            f"data.columns.label names {len(names)} columns, of which a sample can have one class",
            'name one column, or set data.label_kind = "labels" or "numbers"',
        )
    if kind == "labels":
        return _several(table, values[0], classes)
    return _classes(table, values[0], classes)


def _kind(columns_of_values: list[list[str]]) -> str:
    """What labels look like: several columns of 0 and 1, or a separator: labels; a fraction: numbers; else classes."""
    everything = [value for values in columns_of_values for value in values]
    if len(columns_of_values) > 1:
        return "labels" if {*everything} <= {"0", "1"} else "numbers"
    if any(SEPARATOR in value for value in everything):
        return "labels"
    is_number = all(_is(float, value) for value in everything)
    return "numbers" if is_number and not all(_is(int, v) for v in everything) else "classes"


def _is(kind: Callable[[str], Any], value: str) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True


def _classes(table: Table, values: list[str], classes: Sequence[str]) -> Labels:
    """(n,) int64. Classes are sorted, whole numbers by value, and count from 0."""
    if not classes:
        by = int if all(_is(int, value) for value in values) else str
        classes = sorted(set(values), key=by)
    return Labels(np.array(_numbered(table, values, classes), np.int64), tuple(classes))


def _several(table: Table, values: list[str], classes: Sequence[str]) -> Labels:
    """(n, classes) float32 of 0 and 1."""
    split = [[v.strip() for v in value.split(SEPARATOR) if v.strip()] for value in values]
    classes = classes or sorted({name for names in split for name in names})
    targets = np.zeros((len(values), len(classes)), np.float32)
    for row, names in enumerate(split):
        targets[row, _numbered(table, names, classes, row)] = 1
    return Labels(targets, tuple(classes), multi_label=True)


def _numbered(
    table: Table, values: Sequence[str], classes: Sequence[str], row: int | None = None
) -> list[int]:
    numbers = {name: number for number, name in enumerate(classes)}
    for place, value in enumerate(values):
        if value not in numbers:
            raise UserError(
                f"{table.line(place if row is None else row)} has the class {value!r}, which the "
                "training set has not",
                nearest(value, list(classes)),
            )
    return [numbers[value] for value in values]


def _flags(table: Table) -> np.ndarray:
    columns_of_flags = []
    for name, values in table.labels.items():
        for row, value in enumerate(values):
            if value not in ("0", "1"):
                raise UserError(
                    f"{table.line(row)} has {name} = {value!r}",
                    "labels of a column each are 0 or 1",
                )
        columns_of_flags.append([value == "1" for value in values])
    return np.array(columns_of_flags, np.float32).T.copy()


def _numbers(table: Table, values: list[str], name: str) -> np.ndarray:
    """(n,) float64."""
    for row, value in enumerate(values):
        if not _is(float, value) or not np.isfinite(float(value)):
            raise UserError(
                f"{table.line(row)} has {name} = {value!r}, which is no finite number",
                "correct it or remove the row",
            )
    return np.array([float(value) for value in values])
