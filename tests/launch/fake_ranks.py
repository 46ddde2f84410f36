"""Small rank processes for tests of the launcher: `python -m tests.launch.fake_ranks NAME FOLDER`.

Each stands for a way in which ranks behave; most need no torch, which takes a second to import.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from paceline.errors import DivergedError, UserError
from paceline.launch.first_cause import EXIT_CODES, describe, write_failure
from paceline.launch.lifeline import Lifeline
from paceline.parallel.launched import Launched, launched
from paceline.records.folder import RunFolder

ME = launched() or Launched()
FOLDER = RunFolder(Path(sys.argv[2] if len(sys.argv) > 2 else "."))


def end_well() -> None:
    print(f"rank {ME.rank} of attempt {ME.attempt}")


def crash_once() -> None:
    if ME.rank == 1 and ME.attempt == 0:
        raise ValueError("the first attempt fails")


def crash() -> None:
    if ME.rank == 1:
        raise ValueError(f"attempt {ME.attempt} fails")
    time.sleep(60)


def crash_the_same_way() -> None:
    raise ValueError("always the same")


def crash_the_same_way_further_on() -> None:
    (FOLDER.checkpoints / f"step-{ME.attempt}").mkdir(exist_ok=True)
    raise ValueError("always the same")


def leave_with_code() -> None:
    if ME.rank == 1:
        print("the last words")
        sys.exit(17)


def crash_beside_a_deaf_rank() -> None:
    if ME.rank == 0:
        signal.signal(signal.SIGTERM, lambda *_: mark("told-to-end"))
        mark("deaf")
        while True:
            time.sleep(60)
    wait_for("deaf")
    raise ValueError("the cause")


def user_error() -> None:
    if ME.rank == 1:
        raise UserError("there is no folder photos/", "name one that exists")
    time.sleep(60)


def diverge() -> None:
    if ME.rank == 0:
        raise DivergedError("the loss is nan at step 7", "lower optim.base_lr")
    time.sleep(60)


def segfault() -> None:
    if ME.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


def lose_a_peer() -> None:
    """Rank 1 is killed within a collective; the other reports a lost connection, at once."""
    dist = join()
    import torch

    if ME.rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher is often quicker than gloo
    for step in range(1000):
        if ME.rank == 1 and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(4))


def lose_a_peer_once() -> None:
    """The same in the first attempt; the second goes on to its end."""
    if ME.attempt < 1:
        lose_a_peer()
    dist = join()
    import torch

    ones = torch.ones(4)
    dist.all_reduce(ones)
    dist.destroy_process_group()
    print(f"the sum is {ones[0]:g}")


def stop_when_asked() -> None:
    """A rank of the right manners: it listens from the start and saves when it is asked to stop."""
    lifeline = Lifeline()
    lifeline.attach()
    mark(f"ready-{ME.attempt}-{ME.rank}")
    wait_for_stop(lifeline)
    if ME.rank == 0:
        FOLDER.write_result(status="stopped", reason=lifeline.reason, step=3, checkpoint=None)


def stop_after_a_slow_start() -> None:
    """Asked to stop while it cannot listen yet, as in the first moments of a process."""
    mark(f"started-{ME.rank}")
    time.sleep(0.5)
    stop_when_asked()


def fail_when_asked() -> None:
    lifeline = Lifeline()
    lifeline.attach()
    mark(f"ready-{ME.attempt}-{ME.rank}")
    wait_for_stop(lifeline)
    if ME.rank == 0:
        raise OSError("no space")


def ignore_stop() -> None:
    lifeline = Lifeline()
    lifeline.attach()
    mark(f"ready-{ME.attempt}-{ME.rank}")
    time.sleep(60)


def start_children() -> None:
    """A process that a loader might start, and one that would outlive its rank if it could."""
    lifeline = Lifeline()
    lifeline.attach()
    for _ in range(2):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    mark(f"ready-{ME.attempt}-{ME.rank}")
    time.sleep(60)


def end_beside_children() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def wait_for_stop(lifeline: Lifeline) -> None:
    deadline = time.monotonic() + 120
    while lifeline.reason is None:
        assert time.monotonic() < deadline, "nobody asked this rank to stop"
        time.sleep(0.01)


def mark(name: str) -> None:
    (FOLDER.path / name).touch()


def wait_for(name: str) -> None:
    while not (FOLDER.path / name).exists():
        time.sleep(0.01)


def join() -> Any:
    """Joins the other ranks over gloo, as `parallel/world.py` does."""
    import torch.distributed as dist

    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(f"attempt{ME.attempt}", store),
        rank=ME.rank,
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    return dist


def run(scene: Callable[[], None]) -> NoReturn:
    try:
        scene()
    except Exception as error:  # noqa: BLE001 (as the worker does)
        failure = describe(error, ME.rank)
        write_failure(FOLDER, ME.attempt, failure)
        print(failure.traceback, file=sys.stderr, flush=True)
        os._exit(EXIT_CODES[failure.category])
    sys.exit(0)


if __name__ == "__main__":
    run(globals()[sys.argv[1]])
