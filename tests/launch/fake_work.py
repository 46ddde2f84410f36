"""Ways in which the work of a rank may go, inside the real process of a rank.

`python -m tests.launch.fake_work NAME RUN_FOLDER`: the worker of Paceline with other work to do.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

from paceline.errors import DivergedError, UserError
from paceline.worker import Rank, main


def print_in_all_ways(rank: Rank) -> None:
    print("from python")
    os.write(2, b"from native code\n")
    subprocess.run(["echo", "from a child"], check=True)
    print("not UTF-8: \udcff")
    mark(rank, "printed")
    time.sleep(60)


def user_error(rank: Rank) -> None:
    raise UserError("there is no folder photos/", "name one that exists")


def diverge(rank: Rank) -> None:
    raise DivergedError("the loss is nan at step 7", "lower optim.base_lr")


def crash_beside_things_that_hang(rank: Rank) -> None:
    atexit.register(time.sleep, 60)
    threading.Thread(target=time.sleep, args=[60]).start()
    raise ValueError("the model is wrong\nin two lines")


def leave_by_sys_exit(rank: Rank) -> None:
    sys.exit(0)


def end_beside_a_thread(rank: Rank) -> None:
    atexit.register(print, "said at exit")
    threading.Thread(target=time.sleep, args=[60]).start()


def segfault(rank: Rank) -> None:
    ctypes.string_at(0)


def hang(rank: Rank) -> None:
    """In native code: Python's own signal handlers do not run, as in a collective."""
    rank.lifeline.tell(lambda reason: mark(rank, f"heard-{reason}"))
    mark(rank, "hanging")
    libc = ctypes.CDLL(None)
    for _ in range(60):
        libc.usleep(1_000_000)  # restarted by the kernel after a signal; no bytecode in between


def end_a_child(rank: Rank) -> None:
    """A child that ends by the signal that stops ranks, as pools of processes end theirs."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=[60])
    process.start()
    process.terminate()
    process.join(5)
    time.sleep(0.5)
    print(f"exit code {process.exitcode}, asked to stop: {rank.lifeline.reason}")


def wait(rank: Rank) -> None:
    mark(rank, f"waiting-{rank.me.rank}")
    time.sleep(60)


def lose_a_peer(rank: Rank) -> None:
    if rank.me.rank == 1:
        while not (rank.folder.path / "hanging").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    hang(rank)


def mark(rank: Rank, name: str) -> None:
    (rank.folder.path / name).touch()


if __name__ == "__main__":
    main(sys.argv[2:], work=globals()[sys.argv[1]])
