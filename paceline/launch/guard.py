"""Ends what a killed launcher leaves behind; a launcher that lives ends its ranks itself.

SIGKILL of the launcher ends ranks through their lifeline, but not every process that they had
started. The guard is a shell that reads process groups from a pipe, a set a line, and kills the
last set when the pipe closes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

_SCRIPT = """
trap '' HUP INT QUIT TERM USR1 USR2
groups=
while read -r line; do groups=$line; done
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
"""


class Guard:
    """One small process for as long as ranks run."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, groups: Iterable[int]) -> None:
        """From now on these process groups, and no others, end with this process."""
        assert self._process.stdin is not None, "the guard was started with a pipe"
        self._process.stdin.write(" ".join(map(str, groups)).encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Ends the guard, and what it still watches."""
        assert self._process.stdin is not None, "the guard was started with a pipe"
        self._process.stdin.close()
        self._process.wait()
