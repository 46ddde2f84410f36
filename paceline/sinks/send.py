"""Serves several trackers at once: while a run goes on, or `track`: a run that has ended."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from paceline.config.load import load_config
from paceline.config.schema import SINKS, RunConfig
from paceline.errors import UserError, nearest
from paceline.records.folder import RunFolder
from paceline.sinks.courier import Courier
from paceline.sinks.tracker import check_installed, open_tracker


def track(
    run: Path | str, to: Sequence[str] = (), *, sets: Sequence[str] = (), quiet: bool = False
) -> list[str]:
    """Sends the records of a run to trackers: what they do not have yet.

    to: names of trackers; without any, those that the run was started with. sets: changes of its settings, such as
    "sinks.mlflow_uri=http://…". Returns the trackers that did not take everything.
    """
    folder = RunFolder(Path(run))
    if not folder.config.is_file():
        raise UserError(f"{run} is no run folder", "name a folder with a config.toml")
    if not folder.records(0).is_file():
        raise UserError(f"{run} has no records yet", "wait for its first step")
    config = load_config(folder.config, sets=sets).config
    names = list(dict.fromkeys(to or config.records.sinks))
    for name in names:
        if name not in SINKS:
            raise UserError(f"unknown sink {name!r}", nearest(name, list(SINKS)))
    if not names:
        raise UserError(f"{run} was started without sinks", f"name some: --to {','.join(SINKS)}")
    check_installed(names)
    ended = threading.Event()
    ended.set()
    with sole(folder, wait=False), _log(folder):
        return serve(folder, config, names, ended, _nothing if quiet else _print)


def serve(
    folder: RunFolder,
    config: RunConfig,
    names: Sequence[str],
    ended: threading.Event,
    say: Callable[[str], None],
) -> list[str]:
    """Brings each tracker, in a thread of its own, all points until `ended`; returns those that missed some."""
    done: dict[str, bool] = {}

    def one(name: str) -> None:
        courier = Courier(name, open_tracker(name, folder, config), folder, say)
        done[name] = courier.run(ended)

    threads = [threading.Thread(target=one, args=(name,), name=f"sink-{name}") for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    missed = [name for name in names if not done.get(name)]
    for name in missed:
        say(
            f"{name} did not get all records; `paceline track {folder.path} --to {name}` sends the rest"
        )
    return missed


@contextlib.contextmanager
def sole(folder: RunFolder, *, wait: bool) -> Iterator[None]:
    """One sender a run folder, so that nothing is sent twice."""
    path = folder.sent("any").with_name(".lock")
    path.parent.mkdir(exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise UserError(
                f"the records of {folder.path} are being sent by another process",
                "the run sends them itself while it goes on; wait for its end",
            ) from None
        yield


@contextlib.contextmanager
def _log(folder: RunFolder) -> Iterator[None]:
    """Sends what the couriers have to say of failures to logs/sinks.log."""
    handler = logging.FileHandler(folder.log(0).with_name("sinks.log"), "a", "utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("paceline.sinks")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _print(sentence: str) -> None:
    print(f"paceline: {sentence}", file=sys.stderr, flush=True)


def _nothing(sentence: str) -> None:
    pass
