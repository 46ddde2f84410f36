"""The process beside a run that serves its trackers: `python -m paceline.sinks RUN_FOLDER`.

Started by `sidecar.py`, which holds the other end of its stdin: when that closes, because the run has ended or its
launcher was killed, it sends what is left and ends. What it prints on stdout is for the user.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from paceline.config.load import load_config
from paceline.records.folder import RunFolder
from paceline.sinks.send import serve, sole

_NICENESS = 10  # trackers never take a core from a rank


def main() -> None:
    # They end the run, and with it this process: at its end, when the last records are there.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    folder = RunFolder(Path(sys.argv[1]))
    config = load_config(folder.config).config
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    with sole(folder, wait=True):
        serve(folder, config, config.records.sinks, ended, _say)


def _wait_for_end(ended: threading.Event) -> None:
    while os.read(0, 1024):
        pass
    ended.set()


def _say(sentence: str) -> None:
    try:
        os.write(1, sentence.encode() + b"\n")
    except BrokenPipeError:  # the launcher was killed; the log has it too
        logging.getLogger("paceline.sinks").warning("%s", sentence)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # a thread of a tracker's library may still hang
