"""Whether another rank of this attempt is gone for good, by what it left in the run folder.

Only needed where no launcher of ours ends the others: torchrun lets a rank that waits for a dead
one hang for 30 s. Ranks of machines that do not share the folder know nothing of each other here.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from paceline.parallel.launched import Launched
from paceline.records.folder import RunFolder, write_atomically


def process_file(folder: RunFolder, rank: int) -> Path:
    """Names a rank's process while it runs; left behind, it tells of a rank that was killed."""
    return folder.log(rank).with_suffix(".pid")


@dataclass(frozen=True)
class Peers:
    """The other ranks, as seen from one rank."""

    folder: RunFolder
    me: Launched

    def join(self) -> None:
        """Announces this process to the others, in place of what an earlier run left."""
        self.folder.failure(self.me.attempt, self.me.rank).unlink(missing_ok=True)
        told = {"pid": os.getpid(), "attempt": self.me.attempt, "host": socket.gethostname()}
        write_atomically(process_file(self.folder, self.me.rank), json.dumps(told) + "\n")

    def leave(self) -> None:
        """Says that this process ends as it should."""
        process_file(self.folder, self.me.rank).unlink(missing_ok=True)

    def failed(self) -> int | None:
        """A rank that failed in this attempt; None where all known ones live or ended well."""
        others = (rank for rank in range(self.me.num_ranks) if rank != self.me.rank)
        return next((rank for rank in others if self._has_failed(rank)), None)

    def _has_failed(self, rank: int) -> bool:
        if self.folder.failure(self.me.attempt, rank).exists():
            return True
        try:
            told = json.loads(process_file(self.folder, rank).read_text(encoding="utf-8"))
        except FileNotFoundError:  # it has ended as it should, or has not begun
            return False
        here = told["host"] == socket.gethostname() and told["attempt"] == self.me.attempt
        return here and not _is_alive(told["pid"])


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the number is another user's process by now: then torchrun decides
        return True
    return True
