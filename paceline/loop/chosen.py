"""Which weights of a run are meant: its final ones, its best, its last or a named checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from paceline.checkpoint import (
    best_candidate,
    candidates,
    newest_whole,
    open_checkpoint,
)
from paceline.errors import UserError, nearest
from paceline.records.folder import RunFolder


@dataclass(frozen=True)
class Chosen:
    """name: final, step-… or a file's name. path: a safetensors file or a checkpoint. notes: for the user."""

    name: str
    path: Path
    notes: list[str] = field(default_factory=list)


def choose_weights(folder: RunFolder, which: str) -> Chosen:
    """which: final, best, last, step-N; empty: final where the run has ended, else last.

    A damaged checkpoint is refused by name; only for `last` the one before it is taken, and said.
    """
    which = which or ("final" if folder.weights.exists() else "last")
    if which == "final":
        if not folder.weights.exists():
            raise UserError(
                f"{folder.path} has no final weights: the run has not finished",
                "take --checkpoint last",
            )
        return Chosen("final", folder.weights)
    if which == "last":
        path, damaged = newest_whole(folder.checkpoints)
        if path is None and damaged:
            raise UserError(
                f"no checkpoint in {folder.checkpoints} is whole: {'; '.join(damaged)}",
                "restore one, or evaluate a weights file",
            )
        return _found(folder, path, [f"passed over: {text}" for text in damaged])
    if which == "best":
        return _found(folder, best_candidate(folder.checkpoints), [])
    number = re.fullmatch(r"(?:step-)?0*([0-9]{1,18})", which)
    known = [path.name for path in candidates(folder.checkpoints)]
    by_step = {int(name.removeprefix("step-").partition(".")[0]): name for name in reversed(known)}
    if number is None or int(number[1]) not in by_step:
        raise UserError(
            f"{folder.path} has no checkpoint {which!r}",
            nearest(which, ["best", "last", "final", *known]),
        )
    return _found(folder, folder.checkpoints / by_step[int(number[1])], [])


def _found(folder: RunFolder, path: Path | None, notes: list[str]) -> Chosen:
    if path is None:
        raise UserError(
            f"there is no checkpoint in {folder.checkpoints}",
            "let the run save one (checkpoint.every_epochs), or name other weights",
        )
    open_checkpoint(path)  # read and compared once; ranks need not
    return Chosen(path.name, path, notes)
