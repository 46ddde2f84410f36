"""A rank's process: `python -m paceline.worker RUN_FOLDER`, from Paceline's launcher or torchrun.

Ties itself to its launcher, prints to its own log, takes its share of the cores, imports torch, and
hands over to the training loop. Owns how the process ends.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import faulthandler
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.errors import ExitCode
from paceline.launch.first_cause import EXIT_CODES, Failure, describe, first_line, write_failure
from paceline.launch.lifeline import LAUNCHER, Lifeline, end_children, open_standard_streams
from paceline.launch.peers import Peers
from paceline.launch.placement import place, share_of
from paceline.parallel.launched import Launched, launched
from paceline.records.folder import RunFolder

if TYPE_CHECKING:
    from paceline.config.schema import RunConfig

_LONGEST_LEAVE_S = 60.0  # for what libraries do at exit, such as sending the last records


@dataclass(frozen=True)
class Rank:
    """One rank's process. objects: what paceline.train() was given, if anything, or its file.

    say: tells a sentence to whoever started an outside launcher. micro_batches: those that a probe tries.
    """

    folder: RunFolder
    me: Launched
    lifeline: Lifeline
    say: Callable[[str], None]
    objects: Any = None
    micro_batches: tuple[int, ...] = ()


def train(rank: Rank) -> None:
    """Trains this rank's part of the run; returns when it has ended or was stopped, and is saved."""
    config, objects = _set_up(rank)

    from paceline.loop.stopping import StopRequest
    from paceline.loop.train import run

    stop = StopRequest()
    rank.lifeline.tell(stop.request)
    with _tracked(rank, config):
        run(rank.folder, config, stop=stop, objects=objects)


@contextlib.contextmanager
def _tracked(rank: Rank, config: RunConfig) -> Iterator[None]:
    """Under an outside launcher, rank 0 starts the process that serves the run's trackers."""
    if LAUNCHER in os.environ or rank.me.rank != 0:
        yield
        return
    from paceline.sinks.sidecar import tracked

    with tracked(rank.folder, config, rank.say):
        yield


def probe(rank: Rank) -> None:
    """Tries micro-batches, instead of training."""
    config, objects = _set_up(rank)

    from paceline.loop.probe import probe

    probe(rank.folder, config, rank.micro_batches, objects=objects)


def judge(rank: Rank) -> None:
    """This rank's part of an evaluation or of predictions; `objects` is its job."""
    _, job = _set_up(rank)

    from paceline.loop.judge import judge
    from paceline.loop.stopping import StopRequest

    stop = StopRequest()
    rank.lifeline.tell(stop.request)
    judge(job, stop)


WORK: dict[str, Callable[[Rank], None]] = {"train": train, "judge": judge, "probe": probe}


def _set_up(rank: Rank) -> tuple[RunConfig, Any]:
    """The run's settings and objects, after this process has taken its share of the cores and imported torch."""
    from paceline.config.load import load_config

    config = load_config(rank.folder.config).config
    share = share_of(
        rank.me.local_rank,
        rank.me.local_num_ranks,
        threads=config.parallel.threads,
        bind=config.parallel.affinity,
        on_gpus=config.device != "cpu",
    )
    keep_threads = config.parallel.threads == 0 and _threads_are_chosen()
    threads = place(share, keep_threads=keep_threads)

    import torch

    from paceline.launch.objects import read

    torch.set_num_threads(threads)  # where a user's script imported torch before
    return config, read(rank.objects) if isinstance(rank.objects, Path) else rank.objects


def main(
    argv: Sequence[str] | None = None,
    *,
    objects: Any = None,
    work: Callable[[Rank], None] | None = None,
) -> NoReturn:
    """Never returns: a rank leaves by os._exit, which nothing can hold up.

    objects: of a script that torchrun started itself as a rank, and that called paceline.train().
    """
    open_standard_streams()
    lifeline = Lifeline()
    lifeline.attach()
    arguments = _parse(argv)
    folder, me = RunFolder(arguments.folder), launched() or Launched()
    log = folder.log(me.rank)
    terminal = Terminal(redirect(log))
    if objects is None:
        objects = arguments.objects
    rank = Rank(folder, me, lifeline, terminal.say, objects, arguments.probe)
    faulthandler.enable()
    peers = Peers(rank.folder, rank.me)
    peers.join()
    lifeline.end_when_stuck(peers.failed, lambda peer: fail(rank, abandoned(rank, peer), terminal))
    if rank.me.local_rank == 0:
        terminal.say(f"training in {rank.folder.path}; the ranks print to {log.parent}")
    try:
        (work or WORK[arguments.work])(rank)
    except BaseException as error:  # noqa: BLE001 (the top of the process)
        fail(rank, describe(error, rank.me.rank), terminal)
    peers.leave()
    _leave_well()


def fail(rank: Rank, failure: Failure, terminal: Terminal) -> NoReturn:
    """Leaves word of what ended this rank and ends it, without waiting for anything."""
    is_told = failure.category in ("user", "diverged")  # in one sentence, without a traceback
    sentence = f"{failure.what}\n  hint: {failure.hint}" if failure.hint else failure.what
    short = sentence if is_told else f"{failure.type}: {first_line(failure.what)}"
    # A full disk or a lost terminal must not keep a rank alive; its exit code speaks.
    with contextlib.suppress(OSError):
        write_failure(rank.folder, rank.me.attempt, failure)
    with contextlib.suppress(OSError):
        text = sentence if is_told else failure.traceback.rstrip() or short
        print(text, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
        terminal.say(f"rank {rank.me.rank}: {short}")
    end_children()
    os._exit(EXIT_CODES[failure.category])


def abandoned(rank: Rank, peer: int) -> Failure:
    """What a rank says that was told to end and still waits for a peer that never will answer."""
    what = f"told to end while it waited for rank {peer}, which had failed"
    return Failure(rank.me.rank, time.time(), "lost-connection", "SIGTERM", what)


class Terminal:
    """The stderr that an outside launcher, such as torchrun, gave this rank, if one did.

    Paceline's own launcher shows what is to be shown itself.
    """

    def __init__(self, number: int | None) -> None:
        self._number = number

    def say(self, text: str) -> None:
        if self._number is not None:
            os.write(self._number, f"paceline: {text}\n".encode())


def redirect(log: Path) -> int | None:
    """Sends everything that this process prints, native code included, to its log, line by line.

    Returns the former stderr where that is an outside launcher's.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    former = None if LAUNCHER in os.environ else os.dup(2)
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(nothing, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(nothing)
    os.close(file)
    sys.stdout, sys.stderr = _line_by_line(1), _line_by_line(2)
    return former


def _line_by_line(number: int) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


def _threads_are_chosen() -> bool:
    """Whether OMP_NUM_THREADS is a user's choice: torchrun sets it to 1 where nobody chose."""
    return LAUNCHER in os.environ or os.environ.get("OMP_NUM_THREADS", "1") != "1"


def _leave_well() -> NoReturn:
    """Exit code 0 even where a library hangs or crashes at exit: the run has ended and is saved."""
    timer = threading.Timer(_LONGEST_LEAVE_S, os._exit, [ExitCode.OK])
    timer.daemon = True
    timer.start()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ExitCode.OK)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m paceline.worker",
        description="One rank of a run; `paceline train` starts these.",
    )
    parser.add_argument("folder", metavar="RUN_FOLDER", type=Path, help="where config.toml lies")
    parser.add_argument(
        "--objects", metavar="FILE", type=Path, help="objects given to paceline.train()"
    )
    parser.add_argument(
        "--probe",
        metavar="N,N",
        type=lambda text: tuple(map(int, text.split(","))),
        default=(),
        help="try these micro-batches, from small to large, instead of training",
    )
    parser.add_argument("--work", choices=list(WORK), default="train", help="what the rank does")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
