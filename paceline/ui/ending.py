"""The last lines of a run: how it ended, its results, and the commands that are useful next.

They are what the command was run for, and go to stdout; everything before them goes to stderr.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from paceline.records.folder import RunFolder
from paceline.ui import text
from paceline.ui.stream import write

Result = dict[str, Any]


@dataclass(frozen=True)
class Next:
    """Something useful to do after a run. show: the line to type, from the folder and the result.

    after: the endings that it suits. needs: a key of the result that must have a value.
    """

    title: str
    show: Callable[[RunFolder, Result], str]
    after: frozenset[str] = frozenset({"finished", "stopped"})
    needs: str = ""


NEXT = [
    Next(
        "train for longer",
        lambda folder, result: f"{_resume(folder)} --epochs {2 * round(result['epoch'])}",
        after=frozenset({"finished"}),
        needs="epoch",
    ),
    Next("look at each step", lambda folder, _: f"tail -n 3 {_quote(folder.records(0))}"),
    Next(
        "use the weights",
        lambda folder, result: _load_weights(folder, result),
        after=frozenset({"finished"}),
        needs="weights",
    ),
]


def show_end(folder: RunFolder, stream: IO[str] | None = None) -> None:
    """Prints the summary of a finished or stopped run; of a failed one the error says it all."""
    result = read_result(folder)
    if result is not None:
        write(sys.stdout if stream is None else stream, summary(folder, result))


def read_result(folder: RunFolder) -> Result | None:
    """None where the run has not ended."""
    try:
        return dict(json.loads(folder.result.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def summary(folder: RunFolder, result: Result) -> list[str]:
    """The lines of the summary; none for a failed run."""
    if result["status"] == "failed":
        return []
    lines = [_finished(result) if result["status"] == "finished" else _stopped(folder, result)]
    rows = [_metric(k, v) for k, v in result["metrics"].items() if v is not None]
    rows.append(("run folder", text.harmless(str(folder.path))))
    if result.get("weights"):
        rows.append(("weights", _weights(folder, result)))
    if result.get("checkpoint"):
        rows.append(("checkpoint", text.harmless(str(folder.path / result["checkpoint"]))))
    steps = [(n.title, n.show(folder, result)) for n in NEXT if _applies(n, result)]
    return [*lines, *_aligned(rows), "next:", *_aligned(steps)]


def _finished(result: Result) -> str:
    reason = f" ({text.harmless(result['reason'])})" if result.get("reason") else ""
    epochs, steps = f"{result['epoch']:g} epochs", f"{text.count(result['step'])} steps"
    speed = result.get("images_per_s")  # none where there was nothing left to train
    shown = f", {text.speed(result, speed)} {text.unit(result)}/s" if speed else ""
    return f"finished{reason}: {epochs}, {steps} in {text.duration(result['seconds'])}{shown}"


def _stopped(folder: RunFolder, result: Result) -> str:
    saved = "saved" if result.get("checkpoint") else "not saved"
    return (
        f"stopped by {text.harmless(result['reason'])} after step {result['step']}, {saved}; "
        f"resume with: {_resume(folder)}"
    )


def _metric(name: str, value: float) -> tuple[str, str]:
    return text.harmless(name.replace("_", " "), 24), text.metric(name, value)


def _applies(next: Next, result: Result) -> bool:
    return result["status"] in next.after and (not next.needs or bool(result.get(next.needs)))


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    width = max((len(label) for label, _ in rows), default=0)
    return [f"  {label.ljust(width)}  {shown}" for label, shown in rows]


def _weights(folder: RunFolder, result: Result) -> str:
    return text.harmless(str(folder.path / result["weights"]))


def _resume(folder: RunFolder) -> str:
    return f"paceline train --resume {_quote(folder.path)}"


def _load_weights(folder: RunFolder, result: Result) -> str:
    return f"model.load_state_dict(safetensors.torch.load_file({_weights(folder, result)!r}))"


def _quote(path: object) -> str:
    return shlex.quote(text.harmless(str(path)))
