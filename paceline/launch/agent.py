"""Torch's elastic agent for the ranks of one machine, with our own rules for how ranks end.

Torch's agent brings the attempts, the store and the ranks' environment. It waits 30 s for a rank
that hangs, names the first cause by luck and knows no graceful stop, so ending ranks is done here.
Runs in a thread of its own: in the main thread torch would take over the signals. Written for torch
2.6 to 2.14.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events import Event, EventSource
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from paceline.errors import UserError
from paceline.launch.first_cause import RankEnd
from paceline.launch.guard import Guard

HOST = "127.0.0.1"
MONITOR_S = 0.05
GRACE_S = 3.0  # from SIGTERM to SIGKILL, when one rank has failed
_REAP_S = 5.0  # for the kernel to end a process after SIGKILL
# Appends to the log what a rank prints before it does so itself; exec leaves no shell behind.
_START = 'exec "$@" </dev/null >>"$PACELINE_LOGS/rank-$RANK.log" 2>&1'

logger = logging.getLogger("paceline.launch.agent")


@dataclass
class Orders:
    """What the launcher asks of the agent, read by its thread twenty times a second."""

    stop: str = ""  # why all ranks should finish their step, save and end
    at_once: bool = False


@dataclass
class Attempt:
    """How the ranks of one attempt ended.

    ending_since: when the first failure was seen and the others began to be ended, unix seconds.
    was_stopping: whether ranks had been asked to stop before that.
    """

    number: int
    ends: dict[int, RankEnd] = field(default_factory=dict)
    ending_since: float = float("inf")
    was_stopping: bool = False


class StoppedBeforeStartError(Exception):
    """A stop was asked for while no ranks ran: before the first attempt, or between two."""


class LocalAgent(LocalElasticAgent):
    """Runs ranks until all end well, or until one fails and `may_restart` says no."""

    def __init__(
        self,
        spec: WorkerSpec,
        environ: Mapping[str, str],
        orders: Orders,
        may_restart: Callable[[Attempt], bool],
    ) -> None:
        super().__init__(spec, _Environment(environ))
        self._orders = orders
        self._may_restart = may_restart
        self._guard = Guard()
        self._attempt = Attempt(0)
        self._sent: dict[int, set[int]] = {}
        self._groups: list[int] = []
        self._is_forwarded = False

    def close(self) -> None:
        self._guard.close()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        if self._orders.stop or self._orders.at_once:
            raise StoppedBeforeStartError
        self._attempt = Attempt(worker_group.spec.max_restarts - self._remaining_restarts)
        self._sent = {rank: set() for rank in range(worker_group.spec.local_world_size)}
        self._is_forwarded = False
        # Ranks inherit this: a stop that is sent before they listen waits, and does not kill.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        started: dict[int, Any] = super()._start_workers(worker_group)
        self._groups = list(started.values())
        self._tell_guard()
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._note_ends()
        if self._orders.at_once:
            self._remaining_restarts = 0
            self._end_ranks()
        elif self._orders.stop and not self._is_forwarded:
            self._send(signal.SIGUSR1)
            self._is_forwarded = True
        ends = self._attempt.ends
        if any(end.exit_code for end in ends.values()):
            self._note_ends()  # those that died while the others were looked at
            self._attempt.ending_since = time.time()
            self._attempt.was_stopping = self._is_forwarded
            self._end_ranks()
            is_clear = not self._processes()  # else a stuck rank may still hold its GPU
            if not (self._may_restart(self._attempt) and is_clear):
                self._remaining_restarts = 0
            return RunResult(state=WorkerState.FAILED)
        if len(ends) < worker_group.spec.local_world_size:
            return RunResult(state=WorkerState.HEALTHY)
        self._sweep()
        return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(ends))

    def _stop_workers(self, worker_group: WorkerGroup, *_: Any, **__: Any) -> None:
        self._end_ranks()

    def _shutdown(self, *_: Any, **__: Any) -> None:
        self._end_ranks()

    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        """Without torch's look-up of this machine's full name, slow where DNS is."""
        return Event(f"torchelastic.worker.status.{state}", source=source)

    def _processes(self) -> dict[int, Any]:
        """The Popen of each local rank of this attempt that has not ended."""
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return {rank: h.proc for rank, h in handlers.items() if rank not in self._attempt.ends}

    def _note_ends(self) -> None:
        for rank, process in self._processes().items():
            code = process.poll()
            if code is not None:
                self._attempt.ends[rank] = RankEnd(
                    rank, code, time.time(), frozenset(self._sent[rank])
                )

    def _send(self, number: signal.Signals) -> None:
        for rank, process in self._processes().items():
            self._sent[rank].add(number)
            process.send_signal(number)

    def _end_ranks(self) -> None:
        """SIGTERM, some patience, SIGKILL: afterwards nothing is left of this attempt."""
        if not self._orders.at_once:
            self._send(signal.SIGTERM)
            self._wait(GRACE_S, lambda: self._orders.at_once)
        for rank in self._processes():
            self._sent[rank].add(signal.SIGKILL)
        self._sweep()
        self._wait(_REAP_S, lambda: False)
        stuck = [process.pid for process in self._processes().values()]
        if stuck:
            logger.error("processes %s do not end, though they were killed", stuck)

    def _wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        self._note_ends()
        while self._processes() and time.monotonic() < deadline and not is_over():
            time.sleep(0.01)
            self._note_ends()

    def _sweep(self) -> None:
        """Kills every process that ranks of this attempt left: each rank leads a process group."""
        for group in self._groups:
            # macOS says PermissionError of a group that has only zombies left.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self._groups = []
        self._tell_guard()

    def _tell_guard(self) -> None:
        try:
            self._guard.watch(self._groups)
        except BrokenPipeError:
            logger.error("the guard against orphans is gone")


class LocalRendezvous(RendezvousHandler):
    """The meeting point of one machine's ranks: a store in this process, on loopback."""

    def __init__(self, port: int) -> None:
        self._store, self._port = open_store(port)

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return "paceline"

    def get_run_id(self) -> str:
        return "paceline"

    def next_rendezvous(self) -> RendezvousInfo:
        place = RendezvousStoreInfo(HOST, self._port)
        return RendezvousInfo(dist.PrefixStore("launcher", self._store), 0, 1, place)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True


def make_spec(
    command: Sequence[str], *, num_ranks: int, max_restarts: int, port: int
) -> WorkerSpec:
    """What torch's agent is to run. Raises UserError where the port is taken."""
    return WorkerSpec(
        role="rank",
        local_world_size=num_ranks,
        entrypoint="/bin/sh",
        # torch substitutes ${local_rank} in arguments, and with it makes one of two dollar signs.
        args=("-c", _START, "sh", *(word.replace("$", "$$") for word in command)),
        rdzv_handler=LocalRendezvous(port),
        max_restarts=max_restarts,
        monitor_interval=MONITOR_S,
        master_addr=HOST,
    )


def open_store(port: int) -> tuple[dist.TCPStore, int]:
    """A store that serves this machine only, on this port or, for 0, on a free one."""
    listener = _listen(port)
    port = listener.getsockname()[1]
    # torch could not hand a socket to the store's libuv server before 2.8 (pytorch #150215).
    with_libuv = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
    store = dist.TCPStore(
        HOST,
        port,
        is_master=True,
        timeout=timedelta(seconds=60),
        wait_for_workers=False,
        master_listen_fd=listener.fileno(),
        use_libuv=with_libuv,
    )
    listener.detach()  # the store closes it
    return store, port


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise UserError(
            f"launch.port = {port} cannot be used: {error.strerror}",
            "leave launch.port at 0, which takes a free one, or name another",
        ) from error
    return listener


class _Environment(LogsSpecs):
    """Adds to the ranks' environment: this is the one place that torch's agent leaves for it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__()
        self._environ = environ

    @property
    def root_log_dir(self) -> str:
        return os.devnull

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        for environ in envs.values():
            environ.update(self._environ)
        unchanged = dict.fromkeys(envs, "")
        return LogsDest(stdouts=unchanged, stderrs=dict(unchanged), error_files=dict(unchanged))
