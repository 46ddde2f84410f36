"""What the tests of checkpoints share: tensors, ranks that may be killed, forged manifests."""

from __future__ import annotations

import datetime
import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.checkpoint import Store, open_checkpoint


def tensors_of(step: int, rank: int = 0) -> dict[str, Tensor]:
    """A few tensors whose values tell their step, and one that tells its rank too."""
    return {
        "model/weight": torch.full((64, 8), float(step)),
        "model/bias": torch.arange(8) + step,
        f"rank-{rank}/generator/torch": torch.tensor([step, rank], dtype=torch.uint8),
    }


def state_of(step: int) -> dict[str, Any]:
    return {"step": step, "best": {"accuracy": 0.5}, "notes": ["é", None, True]}


def bits(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    """All that a tensor is, for comparison; NaN and -0 included."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tuple(tensor.shape), data.numpy().tobytes()


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert bits(found[name]) == bits(tensor), name


def assert_holds(path: Path, step: int, num_ranks: int = 1) -> None:
    """The checkpoint verifies and holds `tensors_of(step)` of every rank."""
    checkpoint = open_checkpoint(path)
    assert (checkpoint.step, checkpoint.state) == (step, state_of(step))
    expected: dict[str, Tensor] = {}
    for rank in range(num_ranks):
        expected |= tensors_of(step, rank)
    assert_same(checkpoint.load(), expected)


def save_one(folder: Path, *steps: int, **options: Any) -> Path:
    """Saves `tensors_of` these steps on one rank; returns where the last one is."""
    with Store(folder, background=False, **options) as store:
        for step in steps:
            store.save(step, tensors_of(step), state_of(step))
        reports = store.finished()
    assert all(report.ok for report in reports), reports
    return reports[-1].path


def step_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def join(timeout_s: float = 30) -> tuple[int, int, dist.ProcessGroup]:
    """Joins the ranks over gloo; returns rank, number of ranks and a group for the store."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_s))
    assert isinstance(group, dist.ProcessGroup)
    return dist.get_rank(), dist.get_world_size(), group


def run_to_the_end(function: Callable[..., None], *arguments: tuple[Any, ...]) -> list[int]:
    """Runs `function` in a process for each tuple of arguments; exit codes, -9 for a killed one."""
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=function, args=each, daemon=True) for each in arguments]
    for process in processes:
        process.start()
    deadline = time.monotonic() + 60
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    assert None not in codes, f"a rank hung: {codes}"
    return [int(code) for code in codes if code is not None]


def set_rank(rank: int, num_ranks: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(num_ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.set_num_threads(1)


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def manifest_of(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return result


def sign(folder: Path, manifest: dict[str, Any]) -> None:
    """Writes a manifest as the store would, with a right sha256: what someone hostile would do."""
    head = manifest.pop("head")
    manifest.pop("sha256", None)
    rest = f'"head": {json.dumps(head)},\n{json.dumps(manifest)[1:]}\n'.encode()
    first = b'{"sha256": "' + hashlib.sha256(rest).hexdigest().encode() + b'",\n'
    (folder / "manifest.json").write_bytes(first + rest)


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """Replaces a file of a checkpoint and lists the new content in the manifest."""
    (folder / name).write_bytes(data)
    manifest = manifest_of(folder)
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    sign(folder, manifest)
