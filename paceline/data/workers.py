"""Loader processes of one rank: started, fed with tasks, watched, cleaned up. What a task is, `assemble.py` says."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker, util
from pickle import PicklingError
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from paceline.data.assemble import Assembler, Loaded, Task
from paceline.data.generators import seed_generators
from paceline.errors import PacelineError, UserError

_MOST_CHOSEN = 16
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
SHARED_MEMORY = "/dev/shm"
_MORE_SHARED = (
    "set data.workers = 0, or fewer workers or data.prefetch = 1; "
    "in a container, start it with a larger --shm-size"
)


_WHY_IT_LEFT = (
    "see its traceback above, or set data.workers = 0; a script that starts a run needs "
    'if __name__ == "__main__": around it'
)
_UNSENDABLE = (PicklingError, AttributeError, TypeError)  # what pickling raises


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_workers(in_memory: bool, cores: int) -> int:
    """What `data.workers = -1` means: none for a source in memory, else a process a core of this rank."""
    return 0 if in_memory else max(1, min(cores, _MOST_CHOSEN))


def check_shared_memory(needed_bytes: int, workers: int) -> None:
    """Loader processes hand over micro-batches in shared memory; too little of it ends them by a bus error."""
    if not os.path.isdir(SHARED_MEMORY):
        return
    status = os.statvfs(SHARED_MEMORY)
    free = status.f_bavail * status.f_frsize
    if needed_bytes > free:
        raise UserError(
            f"{workers} loader processes need {needed_bytes / 1e6:,.0f} MB of shared memory, and "
            f"{SHARED_MEMORY} has {free / 1e6:,.0f} MB free",
            _MORE_SHARED,
        )


class _Tasks(Dataset[Any]):
    """What a loader process runs.

    Errors for users travel as values, since torch rewrites exceptions. Shared memory is taken here, since a failure
    in the queue's own thread would lose the micro-batch, and the rank would wait for it for ever.
    by_value: sent by cloudpickle, which also takes what was defined in a notebook or inside a function, but copies
    the tensors that the usual way shares.
    """

    def __init__(self, assembler: Assembler, by_value: bool = False) -> None:
        self._assembler = assembler
        self._by_value = by_value

    def __getitem__(self, task: Task) -> Loaded | PacelineError:
        try:
            loaded = self._assembler(task)
        except PacelineError as e:
            return e
        try:
            return loaded.shared()
        except RuntimeError as e:
            return UserError(f"shared memory ran out in a loader process ({e})", _MORE_SHARED)

    def __getstate__(self) -> dict[str, Any]:
        if not self._by_value:
            return self.__dict__
        import cloudpickle

        return {"by_value": cloudpickle.dumps(self._assembler)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "by_value" not in state:
            self.__dict__.update(state)
            return
        import cloudpickle

        self.__init__(cloudpickle.loads(state["by_value"]))  # type: ignore[misc]


class _Feed(Sampler[Any]):
    """The tasks of the present run, handed out as loader processes become free."""

    def __init__(self) -> None:
        self.tasks: Iterable[Task] = ()

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)


def _as_is(value: Any) -> Any:
    return value


class WorkerPool:
    """`num_workers` processes that make micro-batches in the order of their tasks. They start at the first run."""

    def __init__(
        self, assembler: Assembler, *, num_workers: int, prefetch: int, rank: int, pin_memory: bool
    ) -> None:
        self._assembler = assembler
        self._feed = _Feed()
        self._options: dict[str, Any] = {
            "num_workers": num_workers,
            "prefetch_factor": prefetch,
            "pin_memory": pin_memory,
            "worker_init_fn": functools.partial(start_worker, assembler.seed, rank),
        }
        self._loader: DataLoader[Any] | None = None
        self._running: list[Any] = []  # torch's iterator over the processes, while they live
        self._busy = False
        util.Finalize(self, _shut_down, (self._running,), exitpriority=20)
        modules = {
            *assembler.train.modules,
            *getattr(assembler.evaluation, "modules", ()),
            *assembler.augment.modules,
        }
        start_fork_server(sorted(modules))

    def run(self, tasks: Iterable[Task]) -> Iterator[Loaded]:
        """The micro-batches of the tasks, in order. Given up before its end, it ends the processes."""
        assert not self._busy, "finish or close one iterator of a Loader before the next"
        self._busy, finished = True, False
        try:
            iterator = self._start(tasks)
            while True:
                with _explained(self._running):
                    item = next(iterator, None)
                if item is None:
                    finished = True
                    return
                if isinstance(item, PacelineError):
                    raise item
                yield item
        finally:
            self._busy = False
            if not finished:
                self.close()

    def close(self) -> None:
        """Ends the processes; another run starts new ones."""
        self._loader = None
        _shut_down(self._running)

    def _start(self, tasks: Iterable[Task]) -> Iterator[Any]:
        """Hands the tasks to the processes, and starts them where there are none."""
        self._feed.tasks = tasks
        if self._loader is not None:
            with _explained(self._running):
                return iter(self._loader)
        try:
            return self._start_processes(by_value=False)
        except _UNSENDABLE:
            pass
        try:
            return self._start_processes(by_value=True)
        except _UNSENDABLE as e:
            raise UserError(
                f"{self._assembler.train.name} cannot be sent to loader processes: {e}",
                "open files and connections in the first __getitem__, or set data.workers = 0",
            ) from e

    def _start_processes(self, by_value: bool) -> Iterator[Any]:
        loader: DataLoader[Any] = DataLoader(
            _Tasks(self._assembler, by_value),
            batch_size=None,
            sampler=self._feed,
            collate_fn=_as_is,
            persistent_workers=True,
            multiprocessing_context="forkserver",  # fork would copy locks that other threads hold
            generator=torch.Generator(),  # else it draws from the rank's own
            **self._options,
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Got pickle error")
            try:
                iterator = iter(loader)
            except (BrokenPipeError, EOFError) as e:
                raise UserError("a loader process ended while it started", _WHY_IT_LEFT) from e
        self._loader = loader
        self._running[:] = [iterator]
        return iterator


def start_fork_server(modules: list[str]) -> None:
    """Starts the process that loader processes are forked from; it imports torch while the rank does other things."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["paceline.data.preload", *modules])
    with _blocked(
        signal.SIGUSR1
    ):  # the one of STOPPING that multiprocessing's tracker would die of
        _start_resource_tracker()
    forkserver.ensure_running()


def _start_resource_tracker() -> None:
    """Starts the process that unlinks the semaphores of a killed rank, in a session of its own.

    Python would start it in the rank's process group, which is killed as a whole: /dev/shm would fill with sem.mp-….
    """
    tracker: Any = resource_tracker._resource_tracker
    if tracker._fd is not None:
        return
    reading, writing = os.pipe()
    main = f"from multiprocessing.resource_tracker import main; main({reading})"
    process = subprocess.Popen(
        [sys.executable, *util._args_from_interpreter_flags(), "-c", main],  # type: ignore[attr-defined]
        stdin=subprocess.DEVNULL,
        pass_fds=[reading],
        start_new_session=True,
    )
    os.close(reading)
    tracker._fd, tracker._pid, tracker.process = writing, process.pid, process


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """Processes that are started meanwhile never receive the signal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_stopping() -> None:
    """A signal that asks a run to stop may reach every process of it (Ctrl-C does; Slurm and systemd send it so).

    The rank then finishes its step, for which it still needs data.
    """
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def start_worker(seed: int, rank: int, worker: int) -> None:
    """In a loader process, before its first task."""
    ignore_stopping()
    seed_generators(seed, rank, worker)
    threading.Thread(target=_leave_with_parent, name="paceline-parent", daemon=True).start()


def _leave_with_parent() -> None:
    """A killed rank cannot end its loader processes, and they are not its children but the fork server's."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a loader process has a parent"
    parent.join()
    os._exit(1)


def _shut_down(running: list[Any]) -> None:
    """Also at exit, before multiprocessing would wait for processes that ignore its SIGTERM."""
    while running:
        iterator = running.pop()
        iterator._shutdown_workers()
        for process in iterator._workers:
            if process.is_alive():
                process.kill()


@contextmanager
def _explained(running: list[Any]) -> Iterator[None]:
    """Turns torch's errors about dead loader processes into sentences."""
    try:
        yield
    except RuntimeError as e:
        _explain(e, running)
        raise


def _explain(error: RuntimeError, running: list[Any]) -> None:
    """Raises a UserError where the cause is known; torch's own error goes on where it is not."""
    text = str(error)
    if "exited unexpectedly" not in text and "killed by signal" not in text:
        return
    for iterator in running:
        for number, process in enumerate(iterator._workers):
            if not process.is_alive() and process.exitcode:
                raise _death(number, process.pid, process.exitcode) from error


def _death(number: int, pid: int, exitcode: int) -> UserError:
    name = f"loader process {number} (pid {pid})"
    if exitcode == -signal.SIGBUS:
        return UserError(f"shared memory ran out in {name}", _MORE_SHARED)
    if exitcode == -signal.SIGKILL:
        return UserError(
            f"{name} was killed by SIGKILL, as the system does when memory runs out",
            "set data.workers or data.prefetch lower, or give the machine more memory",
        )
    if exitcode < 0:
        return UserError(
            f"{name} was killed by {signal.Signals(-exitcode).name}",
            "set data.workers = 0 to see where; a library that decodes samples is the usual suspect",
        )
    return UserError(
        f"{name} left with exit code {exitcode}",
        _WHY_IT_LEFT,
    )
