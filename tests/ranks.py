"""Runs a function on N real ranks over gloo: real processes, started in 0.1 s by a fork server that has torch."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torchvision", "torch.distributed", "numpy"])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def run_ranks(
    function: Callable[..., Any], num_ranks: int, *args: Any, timeout_s: float = 120
) -> list[Any]:
    """`function(*args)` on every rank, with the environment that torch's launcher would set.

    Returns the results by rank. Raises the earliest rank's exception as text; ends all others.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            _context.Process(
                target=_rank, args=(function, args, rank, num_ranks, port, folder), daemon=True
            )
            for rank in range(num_ranks)
        ]
        for process in processes:
            process.start()
        try:
            _wait(processes, time.monotonic() + timeout_s)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
        failures = sorted(Path(folder).glob("failure-*"), key=lambda p: p.stat().st_mtime_ns)
        if failures:
            raise AssertionError(f"{failures[0].name}:\n{failures[0].read_text()}")
        codes = [process.exitcode for process in processes]
        assert codes == [0] * num_ranks, f"exit codes of the ranks: {codes}"
        return [
            pickle.loads((Path(folder) / f"result-{rank}").read_bytes())
            for rank in range(num_ranks)
        ]


def _wait(processes: list[Any], deadline: float) -> None:
    while any(p.is_alive() for p in processes):
        if any(p.exitcode not in (None, 0) for p in processes):
            time.sleep(0.5)  # the others' own failures may be the earlier ones
            return
        assert time.monotonic() < deadline, "ranks did not end in time"
        time.sleep(0.01)


def _rank(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    rank: int,
    num_ranks: int,
    port: int,
    folder: str,
) -> None:
    import torch

    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(num_ranks),
        LOCAL_WORLD_SIZE=str(num_ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    try:
        result = function(*args)
        (Path(folder) / f"result-{rank}").write_bytes(pickle.dumps(result))
    except BaseException:  # noqa: BLE001 - the top of the process
        partial = Path(folder) / f".failure-{rank}"
        partial.write_text(traceback.format_exc())
        partial.rename(Path(folder) / f"failure-{rank}")
        os._exit(1)
