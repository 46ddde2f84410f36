"""One save by all ranks: written, agreed on, put in place, pruned; threads are the store's."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from paceline.checkpoint import folders
from paceline.checkpoint.exchange import exchange
from paceline.checkpoint.files import (
    FileEntry,
    reason_of,
    sync_folder,
    tensor_chunks,
    write_file,
)
from paceline.checkpoint.manifest import (
    MANIFEST,
    STATE,
    Head,
    Manifest,
    Piece,
    TensorEntry,
    check_grid,
    encode,
)
from paceline.checkpoint.shards import rank_of_name
from paceline.errors import RankFailedError


@dataclass(frozen=True)
class SaveReport:
    """How a save ended; the same on every rank.

    ok: the checkpoint is whole at `path`.
    error: one sentence on why it is not or, with `ok`, on what could not be pruned.
    seconds: from the call of `save` to the ranks' agreement. bytes: of all files of all ranks.
    """

    step: int
    path: Path
    seconds: float
    bytes: int
    ok: bool
    error: str | None


@dataclass(frozen=True)
class Described:
    """A tensor as one rank sees it. box: offsets and sizes of what this rank writes of it."""

    dtype: str
    shape: list[int]
    box: tuple[list[int], list[int]] | None


@dataclass(frozen=True)
class Job:
    """tensors: waits for the copies of what this rank writes, and returns them by name."""

    step: int
    best: bool
    state: bytes
    described: Mapping[str, Described]
    tensors: Callable[[], Mapping[str, Tensor]]
    began: float


class NotSaved(Exception):
    """All ranks know that the save failed. Its cause is this rank's own error, if it had one."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.seconds = seconds


@dataclass(frozen=True)
class Saver:
    """What does not change from one save to the next."""

    folder: Path
    rank: int
    num_ranks: int
    group: dist.ProcessGroup | None
    keep_last: int
    keep_best: bool
    phase: Callable[[str], None]

    def run(self, job: Job) -> tuple[SaveReport, BaseException | None]:
        """Saves and reports; also returns this rank's own error if it is more than a failed write.

        Raises `RankFailedError` if another rank is gone.
        """
        path, partial = self.folder / folders.step_name(job.step), None
        try:
            partial = self.folder / self._together(job, lambda: self._begin(job))[0]["value"]
            written = self._together(job, lambda: self._write(job, partial))
            files = [answer["value"] for answer in written]
            done = self._together(job, lambda: self._finish(job, partial, files))[0]
        except NotSaved as error:
            if partial is not None and self.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)  # what stays is swept at the next start
            cause = error.__cause__
            report = SaveReport(job.step, path, error.seconds, 0, ok=False, error=str(error))
            return report, None if isinstance(cause, OSError) else cause
        name, num_bytes, problem = done["value"]
        path = self.folder / name
        return SaveReport(job.step, path, done["seconds"], num_bytes, ok=True, error=problem), None

    def _together(self, job: Job, work: Callable[[], Any]) -> list[dict[str, Any]]:
        """Does `work` and returns what every rank made of it.

        Raises `NotSaved` on every rank if it failed on one.
        """
        value, failure = None, None
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - the others must hear of it; raised below
            failure = error
        own = {
            "step": job.step,
            "seconds": time.perf_counter() - job.began,
            "value": value,
            "error": None if failure is None else reason_of(failure),
        }
        try:
            answers = exchange(own, self.group, self.num_ranks)
        except RuntimeError as error:
            raise RankFailedError(
                f"rank {self.rank} lost the other ranks while saving step {job.step}: "
                f"{reason_of(error).partition(chr(10))[0]}",
                "see which rank ended first; the checkpoints saved before are whole",
            ) from (failure or error)
        steps = [answer["step"] for answer in answers]
        assert len(set(steps)) == 1, f"the ranks save different steps: {steps}"
        for rank, answer in enumerate(answers):
            if answer["error"] is not None:
                reason = f"step {job.step} was not saved: rank {rank}: {answer['error']}"
                raise NotSaved(reason, answers[0]["seconds"]) from failure
        return answers

    def _begin(self, job: Job) -> str | None:
        return folders.make_partial(self.folder, job.step) if self.rank == 0 else None

    def _write(self, job: Job, partial: Path) -> dict[str, Any]:
        """Writes this rank's tensors; returns what the manifest must know, as JSON."""
        self.phase("write")
        tensors = job.tensors()
        entry = None
        if tensors:
            chunks = tensor_chunks(tensors)
            path = partial / _file_name(self.rank)
            entry = vars(write_file(path, chunks, begun=lambda: self.phase("writing")))
        return {
            "file": entry,
            "tensors": {name: vars(each) for name, each in job.described.items()},
        }

    def _finish(
        self, job: Job, partial: Path, written: list[dict[str, Any]]
    ) -> tuple[str, int, str | None] | None:
        """Rank 0 puts the checkpoint in place; returns name, bytes and what could not be pruned."""
        if self.rank != 0:
            for phase in ("rename", "renamed", "prune"):
                self.phase(phase)
            return None
        found = folders.find(self.folder)
        files = {STATE: write_file(partial / STATE, [job.state])}
        for rank, answer in enumerate(written):
            if answer["file"] is not None:
                files[_file_name(rank)] = FileEntry(**answer["file"])
        head = Head(
            step=job.step,
            serial=folders.next_serial(found),
            best=job.best or folders.is_best(found, job.step),
            num_ranks=self.num_ranks,
        )
        manifest = Manifest(head, files, merge([answer["tensors"] for answer in written]))
        last = write_file(partial / MANIFEST, [encode(manifest)])
        sync_folder(partial)
        self.phase("rename")
        path = folders.complete(partial, job.step)
        self.phase("renamed")
        path, problem = self._tidy(path)
        return path.name, last.bytes + sum(entry.bytes for entry in files.values()), problem

    def _tidy(self, path: Path) -> tuple[Path, str | None]:
        """Removes what the new checkpoint replaces; it is no worse where that fails."""
        try:
            path = folders.replace_older(path, lambda: self.phase("removing"))
            self.phase("prune")
            folders.prune(
                self.folder, self.keep_last, self.keep_best, lambda: self.phase("removing")
            )
        except OSError as error:
            return path, f"an older checkpoint could not be removed: {reason_of(error)}"
        return path, None


def merge(described: list[dict[str, dict[str, Any]]]) -> dict[str, TensorEntry]:
    """What all ranks say of their tensors, in one table. Raises ValueError on a contradiction."""
    seen: dict[str, tuple[int, str, list[int]]] = {}
    pieces: dict[str, list[Piece]] = {}
    for rank, tensors in enumerate(described):
        for name, raw in tensors.items():
            one = Described(**raw)
            first, dtype, shape = seen.setdefault(name, (rank, one.dtype, one.shape))
            if (one.dtype, one.shape) != (dtype, shape):
                raise ValueError(
                    f"tensor {name!r} is {dtype} {shape} on rank {first}, "
                    f"but {one.dtype} {one.shape} on rank {rank}"
                )
            if one.box is not None:
                offsets, sizes = one.box
                piece = Piece(_file_name(rank), name, tuple(offsets), tuple(sizes))
                pieces.setdefault(name, []).append(piece)
    for name in seen:
        missing = [rank for rank, tensors in enumerate(described) if name not in tensors]
        if missing and rank_of_name(name) is None:
            raise ValueError(f"tensor {name!r} was not given by the ranks {missing}")
    entries = {
        name: TensorEntry(dtype, tuple(shape), tuple(pieces.get(name, ())))
        for name, (_, dtype, shape) in seen.items()
    }
    for name, entry in entries.items():
        check_grid(f"tensor {name!r}", entry)
    return entries


def _file_name(rank: int) -> str:
    return f"rank-{rank}.safetensors"
