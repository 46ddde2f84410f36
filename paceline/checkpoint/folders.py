"""The folder of checkpoints: which are complete, which is newest, which are kept; reads no tensors.

step-00000017            complete: only a rename gives a folder this name
step-00000017.2          complete: step 17 saved again, until it takes the place of the older one
.step-00000017-partial-… being written, or left by a kill
.step-00000017-removed-… being removed, or left by a kill
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint.files import reason_of, sync_folder
from paceline.checkpoint.manifest import MAX_NUMBER, Head, read_head
from paceline.errors import UserError

_COMPLETE = re.compile(r"step-([0-9]{8,18})(?:\.([0-9]{1,9}))?")
_LEFT_OVER = re.compile(r"\.step-[0-9]{8,18}-(?:partial|removed)-[0-9a-f]+")


@dataclass(frozen=True)
class Found:
    """A complete folder; `head` is None where it cannot be read."""

    path: Path
    step: int
    again: int
    head: Head | None

    @property
    def age_order(self) -> tuple[float, int, int]:
        """Grows with newness. What cannot be read counts as newest, so that it is named."""
        serial = float("inf") if self.head is None else self.head.serial
        return serial, self.step, self.again


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def find(folder: Path) -> list[Found]:
    """The complete checkpoints of a folder, newest first."""
    if not folder.is_dir():
        return []
    found = []
    for path in folder.iterdir():
        name = _COMPLETE.fullmatch(path.name)
        if name and path.is_dir() and not path.is_symlink():
            found.append(Found(path, int(name[1]), int(name[2] or 1), _head_of(path)))
    return sorted(found, key=lambda each: each.age_order, reverse=True)


def candidates(folder: Path) -> list[Path]:
    """The complete checkpoints, the one saved last first. Complete does not mean undamaged."""
    return [each.path for each in find(folder)]


def best_candidate(folder: Path) -> Path | None:
    """The checkpoint that was saved last as the best."""
    best = _best(find(folder))
    return best.path if best else None


def make_partial(folder: Path, step: int) -> str:
    """Makes the folder that step `step` is written into, and returns its name."""
    name = f".{step_name(step)}-partial-{secrets.token_hex(4)}"
    (folder / name).mkdir()
    return name


def prepare(folder: Path) -> None:
    """Makes the folder, and removes what a killed run left unfinished in it. Raises `UserError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if _LEFT_OVER.fullmatch(path.name):
                shutil.rmtree(path)
    except OSError as error:
        raise UserError(
            f"{folder} cannot hold checkpoints: {reason_of(error)}",
            "check the folder's permissions",
        ) from error


def complete(partial: Path, step: int) -> Path:
    """Makes a written folder a checkpoint, in one step; returns where it is now."""
    folder = partial.parent
    again = [each.again for each in find(folder) if each.step == step]
    path = folder / (f"{step_name(step)}.{max(again) + 1}" if again else step_name(step))
    os.rename(partial, path)
    sync_folder(folder)
    return path


def replace_older(path: Path, removing: Callable[[], None]) -> Path:
    """Removes older ones of the same step, then takes their name; returns where it is now."""
    plain = path.with_name(path.name.partition(".")[0])
    if path == plain:
        return path
    for each in find(path.parent):
        if step_name(each.step) == plain.name and each.path != path:
            remove(each.path, removing)
    os.rename(path, plain)
    sync_folder(path.parent)
    return plain


def next_serial(found: list[Found]) -> int:
    newest = max((each.head.serial for each in found if each.head is not None), default=0)
    return min(newest + 1, MAX_NUMBER)  # a forged one cannot make ours unreadable


def is_best(found: list[Found], step: int) -> bool:
    """Whether the best one is of this step: saved again, the step stays the best."""
    best = _best(found)
    return best is not None and best.step == step


def prune(folder: Path, keep_last: int, keep_best: bool, removing: Callable[[], None]) -> None:
    """Removes all but the last ones and the best.

    What cannot be read is left alone: a newer version may have written it.
    """
    known = [each for each in find(folder) if each.head is not None]
    best = _best(known) if keep_best else None
    for each in known[keep_last:]:
        if each is not best:
            remove(each.path, removing)


def remove(path: Path, removing: Callable[[], None]) -> None:
    """Removes a checkpoint so that at no instant a half-removed one has a complete one's name."""
    aside = path.parent / f".{path.name.partition('.')[0]}-removed-{secrets.token_hex(4)}"
    os.rename(path, aside)
    sync_folder(path.parent)
    removing()
    shutil.rmtree(aside)


def _best(found: list[Found]) -> Found | None:
    return next((each for each in found if each.head is not None and each.head.best), None)


def _head_of(path: Path) -> Head | None:
    try:
        return read_head(path)
    except UserError:  # whoever opens the checkpoint is told why
        return None
