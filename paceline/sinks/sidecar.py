"""Starts the process that serves a run's trackers, and waits for it at the end of the run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO

from paceline.config.schema import RunConfig
from paceline.records.folder import RunFolder
from paceline.sinks.courier import PATIENCE_S

LONGEST_END_S = 2 * PATIENCE_S + 20  # for a tracker that answers, but slowly


@contextlib.contextmanager
def tracked(folder: RunFolder, config: RunConfig, say: Callable[[str], None]) -> Iterator[None]:
    """Inside, the records of the run go to its trackers; leaving it waits until they have everything.

    say: shows a sentence to the user; called from another thread. Nothing that happens to the trackers or to
    their process reaches the run.
    """
    if not config.records.sinks:
        yield
        return
    process = _start(folder)
    assert process.stdin is not None and process.stdout is not None, "it was started with pipes"
    listener = threading.Thread(target=_listen, args=(process.stdout, say), daemon=True)
    listener.start()
    try:
        yield
    finally:
        process.stdin.close()
        _wait(process, folder, say)
        listener.join(1.0)


def _start(folder: RunFolder) -> subprocess.Popen[bytes]:
    with open(folder.log(0).with_name("sinks.log"), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "paceline.sinks", str(folder.path.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is the run's business
        )


def _listen(stdout: IO[bytes], say: Callable[[str], None]) -> None:
    for line in stdout:
        say(line.decode("utf-8", "replace").rstrip())


def _wait(process: subprocess.Popen[bytes], folder: RunFolder, say: Callable[[str], None]) -> None:
    rest = f"`paceline track {folder.path}` sends the rest"
    try:
        code = process.wait(LONGEST_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        say(f"the trackers took longer than {LONGEST_END_S:.0f} s to end; {rest}")
        return
    if code < 0:
        say(
            f"the process that serves the trackers was ended ({signal.Signals(-code).name}); {rest}"
        )
    elif code:
        say(f"the process that serves the trackers failed, see logs/sinks.log; {rest}")
