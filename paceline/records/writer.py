"""Appends records to a rank's file as JSON lines; what each kind holds, the caller says.

A record must never cost the run: a disk that is full is reported once, the lines that do not fit
are counted, and writing resumes when there is room again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_AUTO_FLUSH_BYTES = 1 << 20  # a caller that never flushes must not fill the memory


class RecordWriter:
    """Appends to one file; buffered until `flush`. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dropped = 0  # records lost since writing last worked
        self._lines: list[bytes] = []
        self._size = 0
        self._file = -1
        self._failing = False
        self._lock = threading.RLock()  # a signal handler may write while its own thread flushes

    def write(self, kind: str, **fields: Any) -> None:
        """Adds one record of this kind, with the time; values are JSON's, numpy's or torch's."""
        line = _encode({"kind": kind, "time": round(time.time(), 4), **fields})
        with self._lock:
            self._lines.append(line)
            self._size += len(line)
            if self._size >= _AUTO_FLUSH_BYTES:
                self.flush()

    def flush(self) -> None:
        """Hands the buffered records to the operating system."""
        with self._lock:
            lines, self._lines, self._size = self._lines, [], 0
            if not lines:
                return
            if self.dropped:
                lines = [_encode(self._loss_record()), *lines]
            try:
                self._append(b"".join(lines))
            except OSError as error:
                self._fail(error, len(lines) - bool(self.dropped))
            else:
                self.dropped, self._failing = 0, False

    def close(self) -> None:
        with self._lock:
            self.flush()
            self._release()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _append(self, data: bytes) -> None:
        if self._file < 0:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            self._file = os.open(self.path, flags, 0o644)
            if _ends_in_torn_line(self._file):
                data = b"\n" + data
        while data:
            data = data[os.write(self._file, data) :]

    def _fail(self, error: OSError, num_records: int) -> None:
        # Some of these lines may have reached the file whole; counting them as lost errs on the
        # safe side. The next flush opens the file anew and so looks again for a torn line.
        self._release()
        self.dropped += num_records
        if self._failing:
            return
        self._failing = True
        with contextlib.suppress(OSError):  # the log may lie on the same full disk
            print(
                f"warning: {self.path} cannot be written ({error.strerror}); "
                "training goes on, its records are dropped until this works again",
                file=sys.stderr,
                flush=True,
            )

    def _loss_record(self) -> dict[str, Any]:
        lost = f"{self.dropped:,} records before this one were lost"
        text = f"{lost}: {self.path.name} could not be written"
        return {"kind": "warning", "time": round(time.time(), 4), "text": text}

    def _release(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = -1


def _ends_in_torn_line(file: int) -> bool:
    """Whether the last writer was killed in the middle of a line, which must not swallow ours."""
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def _encode(record: dict[str, Any]) -> bytes:
    try:
        text = _ENCODER.encode(record)
    except ValueError:  # a number that JSON does not have
        text = json.dumps(_finite(record), allow_nan=False)
    return text.encode("ascii") + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    assert hasattr(value, "tolist"), f"a record cannot hold a {type(value).__name__}: {value!r}"
    return value.tolist()  # of numpy's and torch's arrays and numbers


_ENCODER = json.JSONEncoder(allow_nan=False, default=_plain)  # json.dumps would make one a record


def _finite(value: Any) -> Any:
    """The same value with "NaN", "Infinity" and "-Infinity" where a number is not finite."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    if value is None or isinstance(value, (str, int)):
        return value
    if not isinstance(value, float):
        return _finite(_plain(value))
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
