"""Text for people: numbers and times in few characters, and foreign text made harmless."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

# Escape sequences of ECMA-48: CSI, then OSC/DCS/SOS/PM/APC strings, then the two-character ones.
_ESCAPES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"
    "|(?:\x1b[\\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]*[0-~]"
)
# Control characters, line separators, direction overrides (they reorder what is read), lone
# surrogates (they cannot be written).
_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


_TOP = re.compile(r"(?:best_)?top[0-9]+")


def harmless(text: str, limit: int = 0) -> str:
    """The same text without power over a terminal, on one line; cut to `limit` characters unless 0.

    Colours and other escape sequences are left out, any other control character is shown as �.
    """
    text = _ESCAPES.sub("", text.replace("\t", "    "))
    if limit and len(text) > limit:
        text = text[:limit] + "…"
    return _CONTROLS.sub("\ufffd", text)


def count(number: float) -> str:
    return f"{number:,.0f}"


def unit(record: Mapping[str, Any]) -> str:
    """What speed is told in: images, or what the data source says."""
    return harmless(str(record.get("unit", "images")), 12)


def speed(record: Mapping[str, Any], samples_per_s: float) -> str:
    """A speed in samples, in the record's unit: 256 times as many tokens."""
    return rate(samples_per_s * record.get("units_per_sample", 1))


def rate(per_s: float) -> str:
    """1,234 or 56.7 or 0.89: three figures are enough for a speed."""
    if not math.isfinite(per_s):
        return str(per_s)
    return (
        f"{per_s:,.0f}" if per_s >= 99.95 else f"{per_s:.1f}" if per_s >= 9.995 else f"{per_s:.2f}"
    )


def value(number: float) -> str:
    """A loss or another metric."""
    size = abs(number)
    if not math.isfinite(number):
        return str(number)
    if size >= 10_000 or 0 < size < 0.001:
        return f"{number:.1e}"
    return f"{number:.4f}" if size < 10 else f"{number:.2f}" if size < 1000 else f"{number:.0f}"


def learning_rate(lr: float) -> str:
    return f"{lr:.3g}"


def metric(name: str, number: float, decimals: int = 2) -> str:
    """Accuracies, top-5 too, are shares of 1 and shown as percent."""
    if ("accuracy" in name or _TOP.fullmatch(name)) and math.isfinite(number):
        return f"{100 * number:.{decimals}f}%"
    return value(number)


def memory(num_bytes: float) -> str:
    mib = num_bytes / 2**20
    return f"{mib:.0f} MiB" if mib < 1000 else f"{mib / 1024:.1f} GiB"


def clock(seconds: float) -> str:
    """0:42, 12:03, 1:02:03, 2 d 03:04."""
    minutes, s = divmod(round(max(seconds, 0)), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days} d {h:02}:{m:02}"
    return f"{h}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def duration(seconds: float) -> str:
    """2.1 s, 42 s, and from a hundred seconds on as `clock`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 99.5 else clock(seconds)


def rank_names(ranks: Iterable[int]) -> str:
    """rank 2, ranks 0-3, ranks 0,2-3."""
    ordered = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    names = ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
    return f"rank{'s' if len(ordered) > 1 else ''} {names}"
