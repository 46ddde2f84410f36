"""Reads records and logs back, whole or while they grow; needs neither torch nor numpy.

A run that was stopped and resumed goes on in the same files, so steps can stand there twice:
`latest` keeps what counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]

_READ_BYTES = 8 << 20  # of one poll
_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_TEXTS = frozenset({"text", "reason", "error", "kind"})  # where a word stays a word


class LineTail:
    """The complete lines of a file that may not exist yet, grow, shrink or be replaced.

    from_start: False skips what is there already. max_line_bytes: of a longer line only the
    beginning is kept, so that a file without line ends cannot fill the memory.
    """

    def __init__(
        self, path: Path, *, from_start: bool = True, max_line_bytes: int = 64 << 20
    ) -> None:
        self.path = path
        self._max_line_bytes = max_line_bytes
        self._file_id: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""
        self._size = 0
        if not from_start:
            self._skip_present()

    def poll(self) -> list[bytes]:
        """The lines that were completed since the last poll, without their ends."""
        try:
            with open(self.path, "rb") as file:
                self._notice_replacement(os.fstat(file.fileno()))
                file.seek(self._offset)
                data = file.read(_READ_BYTES)
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = self._rest + lines[0]
            self._rest = b""
        self._rest = (self._rest + rest)[: self._max_line_bytes]
        return [line[: self._max_line_bytes] for line in lines]

    @property
    def behind(self) -> bool:
        """Whether the last poll saw more than it read."""
        return self._offset < self._size

    def _skip_present(self) -> None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return
        self._notice_replacement(status)
        self._offset = status.st_size

    def _notice_replacement(self, status: os.stat_result) -> None:
        file_id = (status.st_dev, status.st_ino)
        if self._file_id not in (None, file_id) or status.st_size < self._offset:
            self._offset, self._rest = 0, b""
        self._file_id, self._size = file_id, status.st_size


class Follower:
    """The records of a growing file, each once; see `follow`."""

    def __init__(self, path: Path, *, from_start: bool = True) -> None:
        self.torn = 0  # lines that were cut short by a kill or a full disk
        self._tail = LineTail(path, from_start=from_start)

    def poll(self) -> list[Record]:
        """The records that were completed since the last poll."""
        records = []
        for line in self._tail.poll():
            record = _decode(line)
            if record is not None:
                records.append(record)
            elif line.strip():
                self.torn += 1
        return records

    @property
    def behind(self) -> bool:
        return self._tail.behind


def follow(path: Path, *, from_start: bool = True) -> Follower:
    """Follows a records file that may not exist yet; `poll` it."""
    return Follower(path, from_start=from_start)


def read(path: Path) -> list[Record]:
    """Every record of a file, in the order written, without torn lines."""
    if not path.exists():
        raise FileNotFoundError(f"there are no records at {path}")
    follower = Follower(path)
    records = follower.poll()
    while follower.behind:
        records += follower.poll()
    return records


def latest(records: Iterable[Record], kind: str) -> Iterator[Record]:
    """The records of one kind that count, in order, for "step", "eval" and "epoch".

    A resumed run takes steps again that an earlier attempt had taken. A start record therefore
    voids everything after its step, and of two records for the same step (epoch) the later one
    counts.
    """
    kept: dict[int, Record] = {}
    key = "epoch" if kind == "epoch" else "step"
    for record in records:
        if record["kind"] == "start":
            reached = record["step"] / (record["steps_per_epoch"] if key == "epoch" else 1)
            kept = {at: value for at, value in kept.items() if at <= reached}
        elif record["kind"] == kind:
            kept[record[key]] = record
    return (kept[at] for at in sorted(kept))


def steps(records: Iterable[Record]) -> list[Record]:
    """The step records that count, by step; see `latest`."""
    return list(latest(records, "step"))


def _decode(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    if b'"NaN"' in line or b'Infinity"' in line:
        return {k: v if k in _TEXTS else _with_numbers(v) for k, v in record.items()}
    return record


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_numbers(part) for part in value]
    return _NUMBERS.get(value, value) if isinstance(value, str) else value
