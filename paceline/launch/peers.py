"""Whether another rank of this attempt is gone for good, by what it left in the run folder.

Only needed where no launcher of ours ends the others: torchrun lets a rank that waits for a dead
one hang for 30 s.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from paceline.launch.identity import Identity
from paceline.records.folder import RunFolder, write_atomically


def process_file(folder: RunFolder, rank: int) -> Path:
    """Names a rank's process while it runs; left behind, it tells of a rank that was killed."""
    return folder.log(rank).with_suffix(".pid")


@dataclass(frozen=True)
class Peers:
    """The other ranks, as seen from one rank."""

    folder: RunFolder
    me: Identity
    since: float

    @staticmethod
    def join(folder: RunFolder, me: Identity) -> Peers:
        """Announces this process to the others. Call it when the folder's `logs` exists."""
        folder.failure(me.attempt, me.rank).unlink(
            missing_ok=True
        )  # of an earlier run in this folder
        told = {"pid": os.getpid(), "attempt": me.attempt, "host": socket.gethostname()}
        write_atomically(process_file(folder, me.rank), json.dumps(told) + "\n")
        return Peers(folder, me, time.time())

    def leave(self) -> None:
        """Says that this process ends as it should."""
        process_file(self.folder, self.me.rank).unlink(missing_ok=True)

    def failed(self) -> int | None:
        """A rank that failed in this attempt; None where all known ones are alive or ended well."""
        logs = self.folder.log(0).parent
        for path in sorted(logs.glob(f"failure-{self.me.attempt}-*.json")):
            rank = int(path.stem.rpartition("-")[2])
            if rank != self.me.rank and path.stat().st_mtime >= self.since - 60:
                return rank
        for path in sorted(logs.glob("rank-*.pid")):
            rank = int(path.stem.rpartition("-")[2])
            if rank != self.me.rank and self._was_killed(path):
                return rank
        return None

    def _was_killed(self, path: Path) -> bool:
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:  # it has just ended as it should
            return False
        here = told["host"] == socket.gethostname() and told["attempt"] == self.me.attempt
        return here and not _is_alive(told["pid"])


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (
        PermissionError
    ):  # another user's, so not a rank's any more, but that says nothing of the rank
        return True
    return True
