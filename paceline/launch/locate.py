"""Which run folder a command means: a new one, a given one, the one to resume. Reads folders; starts nothing."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint import candidates
from paceline.errors import UserError
from paceline.records.folder import RunFolder


@dataclass(frozen=True)
class Located:
    """A run folder; `resumed` where it holds a run that goes on, from `checkpoint` where one was named."""

    folder: RunFolder
    resumed: bool
    checkpoint: Path | None = None
    note: str = ""


def locate(run: Path | None, resume: str | None, *, runs: Path, name: str) -> Located:
    """
    run: the folder given for this run, or None for a new one under `runs` named after the time and `name`.
    resume: None, "auto" (go on where there is something to go on from), a run folder or one of its checkpoints.
    """
    if resume is None:
        return _fresh(run or new_folder(runs, name))
    if resume == "auto":
        return _newest(run, runs, name)
    return _named(run, Path(resume))


def _fresh(path: Path) -> Located:
    if is_run(path):
        raise UserError(
            f"the run folder {path} exists", f"go on with `--resume {path}`, or name another folder"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists and is not a run folder", "name a new folder with --run")
    return Located(RunFolder(path), resumed=False)


def _newest(run: Path | None, runs: Path, name: str) -> Located:
    if run is not None:
        return Located(RunFolder(run), resumed=True) if is_run(run) else _fresh(run)
    found = [p for p in runs.iterdir() if is_run(p)] if runs.is_dir() else []
    unfinished = [p for p in found if status_of(p) != "finished"]
    if not unfinished:
        note = f"no unfinished run in {runs}: starting a new one"
        return Located(RunFolder(new_folder(runs, name)), resumed=False, note=note)
    newest = max(unfinished, key=lambda p: (p / "config.toml").stat().st_mtime)
    return Located(RunFolder(newest), resumed=True, note=f"going on with {newest}")


def _named(run: Path | None, source: Path) -> Located:
    if is_run(source):
        if run is not None and run.resolve() != source.resolve():
            raise UserError(
                f"--run {run} and --resume {source} name two runs",
                "leave out --run, or resume from a checkpoint",
            )
        return Located(RunFolder(source), resumed=True)
    if (source / "manifest.json").is_file():
        if run is None:
            return Located(RunFolder(source.parent.parent), resumed=True, checkpoint=source)
        fresh = _fresh(run)
        return Located(fresh.folder, resumed=False, checkpoint=source)
    what = "is neither a run folder nor a checkpoint" if source.exists() else "does not exist"
    raise UserError(
        f"--resume {source}: it {what}", "name a run folder, runs/…/checkpoints/step-…, or auto"
    )


def take_up(located: Located) -> str:
    """Makes the named checkpoint the newest of its run folder; returns what was done, in words.

    In its own run, newer ones step aside (renamed, not deleted); in a new run it is copied.
    """
    checkpoint = located.checkpoint
    if checkpoint is None:
        return ""
    target = located.folder.checkpoints
    if not located.resumed:
        shutil.copytree(checkpoint, target / checkpoint.name)
        return f"starting from a copy of {checkpoint}"
    newer = list(itertools.takewhile(lambda p: p.name != checkpoint.name, candidates(target)))
    for path in newer:
        path.rename(path.with_name(f"aside-{time.strftime('%Y%m%d-%H%M%S')}-{path.name}"))
    return (
        f"going back to {checkpoint.name}; {len(newer)} newer checkpoints were renamed to aside-…"
        if newer
        else ""
    )


def new_folder(runs: Path, name: str) -> Path:
    """A folder name that is free: time, and what is trained."""
    base = (
        f"{time.strftime('%Y%m%d-%H%M%S')}-{re.sub(r'[^A-Za-z0-9_]+', '-', name).strip('-')[:60]}"
    )
    path, number = runs / base, 2
    while path.exists():
        path, number = runs / f"{base}-{number}", number + 1
    return path


def is_run(path: Path) -> bool:
    return (path / "config.toml").is_file()


def status_of(path: Path) -> str:
    """What result.json says of a run; empty where it has none."""
    try:
        return str(json.loads(RunFolder(path).result.read_text())["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
