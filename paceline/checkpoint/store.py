"""`Store`: saves the checkpoints of all ranks while training goes on; reading is `read.py`'s."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch import Tensor

from paceline.checkpoint import folders
from paceline.checkpoint.files import MAX_JSON_BYTES, dtype_name
from paceline.checkpoint.save import Described, Job, Saver, SaveReport
from paceline.checkpoint.shards import Part, part_of
from paceline.checkpoint.snapshot import Snapshot

# In this order. `writing`: a tensor file has been begun. `removing`: before each deletion.
PHASES = ("snapshot", "write", "writing", "rename", "renamed", "prune", "removing")


class Store:
    """The checkpoints of one run. Every rank makes one, and all call `save` in the same order.

    group: a gloo group over all ranks that nothing else uses; None where there is only one rank.
        A rank that is gone, or silent for longer than the group's timeout, is a `RankFailedError`,
        raised by the next call.
    background: write in a thread; otherwise `save` returns when the checkpoint is on disk.
    on_phase: called with each of `PHASES` on the thread that does the work, for drills that kill
        a process there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        group: dist.ProcessGroup | None = None,
        keep_last: int = 2,
        keep_best: bool = True,
        background: bool = True,
        on_phase: Callable[[str], None] | None = None,
    ) -> None:
        assert (group is None) == (num_ranks == 1), f"{num_ranks} ranks, but the group is {group}"
        assert keep_last >= 1, f"keep_last = {keep_last} would keep nothing"
        phase = on_phase or (lambda name: None)
        self._saver = Saver(folder, rank, num_ranks, group, keep_last, keep_best, phase)
        self._background = background
        self._snapshot = Snapshot()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._reports: deque[SaveReport] = deque()
        if rank == 0:  # the others write only into folders that rank 0 makes after this
            folders.prepare(folder)

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        *,
        best: bool = False,
    ) -> None:
        """Saves tensors and state as they are now; waits for an earlier save to end first.

        tensors: the same names on every rank, except that only rank N gives names that begin with
            `rank-N/`. Each part of a DTensor is written once; a plain tensor is the same on every
            rank, and rank 0's is written.
        state: plain JSON without NaN; rank 0's is written.
        """
        assert step >= 0, f"step {step} cannot be saved"
        self.wait()
        began = time.perf_counter()
        self._saver.phase("snapshot")
        data = _state_bytes(step, state)
        parts = {name: part_of(name, value, self._saver.rank) for name, value in tensors.items()}
        described = {name: _describe(name, part) for name, part in parts.items()}
        written = (name for name, each in described.items() if each.box is not None)
        self._snapshot.take({name: parts[name].local for name in written})
        job = Job(step, best, data, described, self._snapshot.ready, began)
        if self._background:
            self._thread = threading.Thread(
                target=self._in_background, args=(job,), name="paceline-checkpoint", daemon=True
            )
            self._thread.start()
        else:
            self._run(job)

    def finished(self) -> list[SaveReport]:
        """Reports of the saves that ended since this was last asked.

        They are the same on every rank, but one rank may see them a little before another does.
        """
        if self._thread is not None and not self._thread.is_alive():
            self.wait()
        return [self._reports.popleft() for _ in range(len(self._reports))]

    def wait(self) -> None:
        """Returns when no save is under way. Raises what went wrong beyond a failed write."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Waits for the save that is under way; `finished` can still be asked afterwards.

        Without it the process ends at once, and the save under way is lost: its thread is a daemon.
        """
        self.wait()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:  # else the other ranks may be gone, and the first error matters
            self.close()

    def _in_background(self, job: Job) -> None:
        try:
            self._run(job)
        except BaseException as error:  # noqa: BLE001 - raised by the caller's next call
            self._failure = error

    def _run(self, job: Job) -> None:
        report, error = self._saver.run(job)
        self._reports.append(report)
        if error is not None:
            raise error


def _describe(name: str, part: Part) -> Described:
    written = part.first and part.local.numel() > 0
    box = (list(part.offsets), list(part.sizes)) if written else None
    return Described(dtype_name(name, part.local.dtype), list(part.shape), box)


def _state_bytes(step: int, state: Mapping[str, Any]) -> bytes:
    try:
        data = json.dumps(dict(state), allow_nan=False, indent=1).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"the state of step {step} is not plain JSON: {error}") from error
    assert len(data) <= MAX_JSON_BYTES, (
        f"a state of {len(data):,} bytes is too large to be read again"
    )
    return data
