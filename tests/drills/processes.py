"""The processes and the shared memory of a run, and how soon they are gone."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

MARK = "PACELINE_DRILL_MARK"  # in the environment of every process of a drill's run
GONE_WITHIN_S = 10.0
LOOK_EVERY_S = 1.0
_FOLDER = Path("/dev/shm")


def processes_of(mark: str) -> list[tuple[psutil.Process, dict[str, str]]]:
    """The living processes that carry this mark, with their environments."""
    found = []
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            if environ.get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process, environ))
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    return found


def seconds_until_gone(mark: str) -> float:
    """How long processes of a run outlive its launcher; raises AssertionError after 10 s."""
    left: list[int] = []

    def gone() -> bool:
        left[:] = [process.pid for process, _ in processes_of(mark)]
        return not left

    return wait_until(gone, GONE_WITHIN_S, lambda: f"processes are left after 10 s: {left}")


def end_all(mark: str) -> None:
    """For the end of a drill, however it went."""
    for process, _ in processes_of(mark):
        process.kill()


class SharedMemory:
    """The files in /dev/shm that came since a run began, without those of other work on the machine.

    A file is the run's unless `look`, called now and then, sees a process of others use it, or its name has the
    number of one.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._foreign = _names()
        self._ours: set[str] = set()
        self._processes: set[int] = set()
        self._looked = 0.0

    def look(self) -> None:
        unknown = _names() - self._foreign - self._ours
        if unknown or time.monotonic() - self._looked > LOOK_EVERY_S:
            self._processes |= {process.pid for process, _ in processes_of(self._mark)}
            self._looked = time.monotonic()
        for name, process in _used(unknown) if unknown else ():
            (self._ours if process in self._processes else self._foreign).add(name)
        for name in unknown:
            creator = re.match(r"torch_(\d+)_", name)
            if creator and int(creator[1]) not in self._processes:
                self._foreign.add(name)
        self._foreign -= self._ours

    def check(self) -> None:
        """Raises AssertionError where files stay for 10 s."""
        left: set[str] = set()

        def gone() -> bool:
            self.look()
            left.clear()
            left.update(_names() - self._foreign)
            return not left

        wait_until(gone, GONE_WITHIN_S, lambda: f"{_FOLDER} has new files after 10 s: {left}")


def _names() -> set[str]:
    return {path.name for path in _FOLDER.iterdir()} if _FOLDER.is_dir() else set()


def _used(names: set[str]) -> Iterator[tuple[str, int]]:
    """Which of these files living processes map or hold open.

    Told by their inodes: a semaphore is made under another name than it has afterwards.
    """
    inodes = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            inodes[(_FOLDER / name).stat().st_ino] = name
    for process in psutil.pids():
        for inode in inodes.keys() & _inodes_in(process):
            yield inodes[inode], process


def _inodes_in(process: int) -> set[int]:
    """Of the files in /dev/shm that a process maps or holds open."""
    found = set()
    try:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            if str(_FOLDER) in line:
                found.add(int(line.split()[4]))
        for link in Path(f"/proc/{process}/fd").iterdir():
            if os.readlink(link).startswith(str(_FOLDER)):
                found.add(link.stat().st_ino)
    except OSError:  # it has ended, or is another user's
        return found
    return found


def wait_until(condition: Callable[[], bool], within_s: float, problem: Callable[[], str]) -> float:
    """Waits for a condition and returns the seconds that it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, problem()
        time.sleep(0.02)
    return time.monotonic() - start
