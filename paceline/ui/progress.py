"""The progress line: where the run is, its speed and what it waits for, in the room there is."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.cells import cell_len
from rich.text import Text

from paceline.records.reader import Record
from paceline.ui import text
from paceline.ui.state import RunState, main_metric

_GAP = 2
_BAR = (10, 30)  # cells, at least and at most
_QUIET_S = 5.0  # without a new step, before the line says so
_SHARE_NAMES = {"data": "data", "compute": "compute", "exchange": "exch"}

# How the line gets narrower, one change after the other: which part, and the form it then has.
_NARROWER = [
    ("memory", "short"),
    ("rate", "short"),
    ("metric", "short"),
    ("epoch", "short"),
    ("step", "short"),
    ("shares", "short"),
    ("memory", ""),
    ("lr", ""),
    ("shares", ""),
    ("room", ""),
    ("skipped", ""),
    ("epoch", ""),
    ("metric", ""),
    ("loss", ""),
    ("rate", ""),
    ("eta", ""),
]

Forms = dict[str, Text]  # "long", and "short" where that differs


def progress_line(state: RunState, width: int, quiet_s: float = 0) -> Text:
    """One line of fewer than `width` cells. quiet_s: seconds since the last record of a step."""
    parts = _parts(state, quiet_s)
    chosen = {name: "long" for name in parts}
    for name, form in [("", ""), *_NARROWER]:
        if name in chosen:
            chosen[name] = form
        line = _join(parts, chosen)
        if cell_len(line.plain) < width:
            break
    room = width - 1 - cell_len(line.plain) - _GAP
    if room >= _BAR[0]:
        line = Text.assemble(line, " " * _GAP, _bar(state.done, min(room, _BAR[1])))
    line.truncate(width - 1, overflow="crop")
    return line


def plain_line(state: RunState, quiet_s: float = 0) -> str:
    """The same, whole, for logs and pipes."""
    return ", ".join(forms["long"].plain for forms in _parts(state, quiet_s).values())


def waiting_line(what: str, seconds: float, width: int) -> Text:
    """Before the first step."""
    line = _labelled(f"{what}, ", text.clock(seconds))
    line.truncate(width - 1, overflow="crop")
    return line


def _parts(state: RunState, quiet_s: float) -> dict[str, Forms]:
    """The parts of the line in order."""
    (start, step), window = state.position, state.window
    parts: dict[str, Forms] = {}
    epoch = f"{max(math.ceil(step['epoch'] - 1e-6), 1)}/{start['epochs']}"
    parts["epoch"] = {"long": _labelled("epoch ", epoch), "short": Text(epoch)}
    at = f"{step['step']}/{start['total_steps']}"
    parts["step"] = {"long": _labelled("step ", at), "short": Text(at)}
    speed = text.speed(start, window.images_per_s)
    parts["rate"] = {
        "long": Text.assemble((speed, "bold"), (f" {text.unit(start)}/s", "dim")),
        "short": Text.assemble((speed, "bold"), ("/s", "dim")),
    }
    slow_s = max(_QUIET_S, 5 * window.step_s)
    if quiet_s > slow_s and state.steps_left:
        parts["eta"] = {"long": _quiet(state, quiet_s)}
    else:
        parts["eta"] = {"long": _labelled("ETA ", text.clock(state.seconds_left))}
    parts["loss"] = {"long": _labelled("loss ", text.value(window.mean(lambda s: s["loss"])))}
    parts |= _metric(state, step.get("metrics") or {})
    parts["lr"] = {"long": _labelled("lr ", text.learning_rate(step["lr"]))}
    memory = text.memory(max(state.memory_bytes.values()))
    parts["memory"] = {"long": _labelled("memory ", memory), "short": Text(memory)}
    reduced = step.get("micro_batch") or start["micro_batch"]
    if reduced < start["micro_batch"]:
        parts["room"] = {"long": Text(f"passes of {reduced}", style="bold magenta")}
    if step.get("skipped"):
        skipped = f"{text.count(step['skipped'])} bad samples skipped"
        parts["skipped"] = {"long": Text(skipped, style="bold magenta")}
    parts["shares"] = _shares(state.shares(), start)
    return parts


def _quiet(state: RunState, quiet_s: float) -> Text:
    if state.at_epoch_end:  # evaluating, saving
        return Text(f"end of epoch for {text.clock(quiet_s)}")
    return Text(f"no step for {text.clock(quiet_s)}", style="bold magenta")


def _metric(state: RunState, metrics: Mapping[str, float]) -> dict[str, Forms]:
    name = main_metric(dict(metrics))
    if not name:
        return {}
    mean = state.window.mean(lambda s: s["metrics"][name])
    shown = text.metric(name, mean, decimals=1)
    label = text.harmless(name, 24)
    short = "acc" if name == "accuracy" else text.harmless(name, 8)
    return {
        "metric": {"long": _labelled(f"{label} ", shown), "short": _labelled(f"{short} ", shown)}
    }


def _shares(shares: Mapping[str, float], start: Record) -> Forms:
    """Percent of the step time; in short without compute, which is most of the rest."""
    if start["num_ranks"] == 1 and shares["exchange"] == 0:
        shares = {name: share for name, share in shares.items() if name != "exchange"}
    long = [_labelled(f"{name} ", f"{share:.0%}") for name, share in shares.items()]
    short = [
        _labelled(f"{_SHARE_NAMES[name]} ", f"{share:.0%}")
        for name, share in shares.items()
        if name != "compute"
    ]
    return {"long": Text(" ").join(long), "short": Text(" ").join(short)}


def _labelled(label: str, value: str) -> Text:
    return Text.assemble((label, "dim"), value)


def _join(parts: Mapping[str, Forms], chosen: Mapping[str, str]) -> Text:
    shown = [(parts[name], form) for name, form in chosen.items() if form]
    return Text(" " * _GAP).join(forms.get(form, forms["long"]) for forms, form in shown)


def _bar(done: float, width: int) -> Text:
    filled = round(done * width)
    return Text.assemble(("━" * filled, "green"), ("─" * (width - filled), "dim"))
