"""What `paceline evaluate` prints: the numbers, the classes, and what is taken for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.ui import text

_TABLE_UP_TO = 30  # classes; of more, the worst are shown
_WORST, _PAIRS = 10, 10
_COLUMNS = ("samples", "recall", "precision", "f1", "auc", "average_precision")
_NAME = 24  # characters of a class's name

Found = Mapping[str, Any]


def evaluation_lines(found: Found, confused: Sequence[Found]) -> list[str]:
    """found: an evaluation as evaluation.json has it."""
    samples = f"{text.count(found['count'])} samples of {text.harmless(found['data'])}"
    ranks = f"{found['ranks']} rank{'s' * (found['ranks'] > 1)}"
    lines = [
        f"{text.harmless(found['weights'])} on {samples}: {ranks}, {text.duration(found['seconds'])}"
    ]
    lines += _aligned({"loss": found["loss"], **found["metrics"]}, found["bounds"])
    rows = [row for row in found["per_class"] if "samples" in row]
    if not rows:
        return lines
    if len(rows) <= _TABLE_UP_TO:
        return [*lines, "classes:", *_table(rows), *_pairs(confused[:3])]
    known = [row for row in rows if row["samples"]]
    worst = sorted(known, key=lambda row: (row["f1"], row["name"]))[:_WORST]
    return [
        *lines,
        f"the {len(worst)} worst of {len(rows)} classes:",
        *_table(worst),
        *_pairs(confused),
    ]


def _aligned(values: Mapping[str, float | None], bounds: Mapping[str, float]) -> list[str]:
    names = {name: text.harmless(name.replace("_", " "), _NAME) for name in values}
    width = max(map(len, names.values()))
    return [
        f"  {names[name].ljust(width)}  {_shown(name, value)}{_bound(bounds.get(name))}"
        for name, value in values.items()
    ]


def _bound(value: float | None) -> str:
    return "" if value is None else f" ± {value:.1g}"


def _table(rows: Sequence[Found]) -> list[str]:
    columns = [name for name in _COLUMNS if any(row.get(name) is not None for row in rows)]
    titles = [name.replace("_", " ") for name in columns]
    names = [text.harmless(row["name"], _NAME) for row in rows]
    width = max(map(len, ["class", *names]))
    cells = [[_cell(name, row.get(name)) for name in columns] for row in rows]
    widths = [max(len(title), 7) for title in titles]
    return [
        f"  {name.ljust(width)}  "
        + "  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True))
        for name, line in zip(["class", *names], [titles, *cells], strict=True)
    ]


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return text.count(value) if name == "samples" else _shown(name, value)


def _pairs(confused: Sequence[Found]) -> list[str]:
    if not confused:
        return []
    lines = [
        f"  {text.harmless(pair['true'], _NAME)} taken for {text.harmless(pair['predicted'], _NAME)}: "
        f"{text.count(pair['count'])} ({pair['share']:.1%})"
        for pair in confused[:_PAIRS]
    ]
    return ["most often confused:", *lines]


def _shown(name: str, value: float | None) -> str:
    return "not a number" if value is None else text.metric(name, value)
