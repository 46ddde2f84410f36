"""Runs the installed command as a user does, and says what came of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PACELINE = shutil.which("paceline", path=str(Path(sys.executable).parent))
assert PACELINE, "the command is not installed beside this Python: pip install -e ."


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def paceline(*arguments: str, folder: Path | None = None) -> Outcome:
    return run([str(PACELINE), *arguments], folder)


def python(code: str, folder: Path | None = None) -> Outcome:
    return run([sys.executable, "-c", code], folder)


def run(command: list[str], folder: Path | None = None) -> Outcome:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=folder, timeout=60)
    return Outcome(done.returncode, done.stdout, done.stderr)
