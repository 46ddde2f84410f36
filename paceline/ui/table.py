"""The table with a row an epoch, in the width there is; and the same row as a plain line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.text import Text

from paceline.records.reader import Record
from paceline.ui import text
from paceline.ui.state import main_metric

_GAP = 2
_MOST_METRICS = 3  # of an evaluation: the watched one and two more
_DROPPED_FIRST = ("metric 2", "metric 1", "lr", "speed", "train metric", "time", "train loss")
BEST = "★"


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    width: int
    show: Callable[[Record], str]


class EpochTable:
    """Knows which columns the last header had, so that a header is printed only when it changes."""

    def __init__(self) -> None:
        self._header = ""

    def rows(self, epoch: Record, best: bool, width: int) -> list[Text]:
        """The lines to print for an epoch record: its row, with a header above where one is due."""
        columns = _fit(_columns(epoch), width)
        header = _line([column.title for column in columns], columns)
        row = Text(_line([column.show(epoch) for column in columns], columns))
        if best:
            row.append(f" {BEST}", style="bold green")
        row.truncate(width - 1, overflow="crop")
        if header == self._header:
            return [row]
        self._header = header
        return [Text(header[: width - 1], style="bold"), row]


def plain_row(epoch: Record, best: bool) -> str:
    """epoch 3/20: train loss 0.4123, …; for logs and pipes."""
    fields = [f"{column.title} {column.show(epoch)}" for column in _columns(epoch)[1:]]
    if best:
        fields.append("best so far")
    return f"epoch {epoch['epoch']}/{epoch['epochs']}: " + ", ".join(fields)


def _columns(epoch: Record) -> list[Column]:
    train, evaluated = epoch.get("train_metrics") or {}, epoch.get("eval_metrics") or {}
    name = main_metric({**evaluated, **train}, epoch.get("watched", ""))
    label = _label(name)
    others = [other for other in evaluated if other != name][: _MOST_METRICS - 1]
    place = f"{epoch['epochs']}/{epoch['epochs']}"
    columns = [
        Column("epoch", "epoch", max(len(place), 5), lambda e: f"{e['epoch']}/{e['epochs']}"),
        Column("train loss", "train loss", 10, lambda e: _value(e, "train_loss")),
        Column("train metric", f"train {label}", 9, lambda e: _metric(e, "train_metrics", name)),
        Column("eval loss", "eval loss", 9, lambda e: _value(e, "eval_loss")),
        Column("eval metric", f"eval {label}", 8, lambda e: _metric(e, "eval_metrics", name)),
        *(_other(number, other) for number, other in enumerate(others, start=1)),
        Column("lr", "lr", 8, lambda e: text.learning_rate(e["lr"])),
        Column("speed", f"{text.unit(epoch)}/s", 8, lambda e: _rate(e)),
        Column("time", "time", 6, lambda e: text.duration(e["seconds"])),
    ]
    absent = {"train metric", "eval metric"} if not name else set()
    if name not in train:
        absent.add("train metric")
    return [column for column in columns if column.key not in absent]


def _other(number: int, name: str) -> Column:
    """The column of a metric that is shown where there is room."""
    label = _label(name)
    return Column(
        f"metric {number}", f"eval {label}", 8, lambda e: _metric(e, "eval_metrics", name)
    )


def _label(name: str) -> str:
    return "acc" if name == "accuracy" else text.harmless(name, 12)


def _fit(columns: list[Column], width: int) -> list[Column]:
    for key in _DROPPED_FIRST:
        if sum(_width(column) for column in columns) + _GAP * len(columns) < width:
            break  # the last gap is where the mark goes
        columns = [column for column in columns if column.key != key]
    return columns


def _width(column: Column) -> int:
    return max(column.width, len(column.title))


def _line(cells: list[str], columns: list[Column]) -> str:
    padded = [cell.rjust(_width(column)) for cell, column in zip(cells, columns, strict=True)]
    return (" " * _GAP).join(padded)


def _value(epoch: Record, key: str) -> str:
    return "-" if epoch.get(key) is None else text.value(epoch[key])


def _rate(epoch: Record) -> str:
    return "-" if epoch["images_per_s"] is None else text.speed(epoch, epoch["images_per_s"])


def _metric(epoch: Record, key: str, name: str) -> str:
    metrics: Mapping[str, float] = epoch.get(key) or {}
    value = metrics.get(name)
    return "-" if value is None else text.metric(name, value)
