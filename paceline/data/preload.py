"""Imported once, by the process that loader processes are forked from, so that each starts in milliseconds.

That process outlives signals that ask the run to stop, for the reason that `workers.ignore_stopping` gives; those
that it forks start with the usual handlers.
"""

from __future__ import annotations

import os
import signal
import sys

from paceline.data.workers import STOPPING, ignore_stopping


def _restore() -> None:
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)


if any("multiprocessing.forkserver import main" in argument for argument in sys.orig_argv):
    ignore_stopping()
    os.register_at_fork(after_in_child=_restore)
