"""Files on their way to disk and back: digests, fsync, tensor files; knows nothing of checkpoints.

Tensor files are safetensors files. The `safetensors` library reads them; they are written here, so
that the digest is of the very bytes that are written, in one pass, and a full disk is an `OSError`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.errors import UserError

CHUNK_BYTES = 4 << 20
MAX_JSON_BYTES = 64 << 20
REPAIR_HINT = "use another checkpoint of the run; --resume auto takes the newest that is whole"

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Damage(ValueError):
    """What is wrong with a file, as the end of a sentence; `damaged` adds the file's name."""


@dataclass(frozen=True)
class FileEntry:
    """What a file must be: its size and the sha256 of its bytes, hexadecimal."""

    bytes: int
    sha256: str


def damaged(path: Path, reason: object, hint: str = REPAIR_HINT) -> UserError:
    return UserError(f"{path} is damaged: {reason}", hint)


def unreadable(path: Path, error: OSError, hint: str = REPAIR_HINT) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path} is missing", hint)
    return UserError(
        f"{path} cannot be read: {reason_of(error)}", "check the file and its permissions"
    )


def reason_of(error: BaseException) -> str:
    """An error in a few words; of an `OSError` what the system says, and the file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f" ({error.filename})" if error.filename else "")
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def shown(value: object) -> str:
    """A value from a file of doubtful origin, short enough for a sentence."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def dtype_name(name: str, dtype: torch.dtype) -> str:
    if dtype not in DTYPE_NAMES:
        known = ", ".join(str(known).removeprefix("torch.") for known in DTYPE_NAMES)
        raise ValueError(
            f"tensor {name!r} has the dtype {dtype}, which a file cannot hold; known: {known}"
        )
    return DTYPE_NAMES[dtype]


def sync_folder(path: Path) -> None:
    """Makes the names in a folder survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(
    path: Path, chunks: Iterator[Any] | list[bytes], begun: Callable[[], None] | None = None
) -> FileEntry:
    """Writes and fsyncs a new file. `begun` is called when its first chunk is written."""
    digest, size = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
            if size == 0 and begun is not None:
                file.flush()
                begun()
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(size, digest.hexdigest())


def tensor_chunks(tensors: Mapping[str, Tensor]) -> Iterator[Any]:
    """The bytes of a safetensors file with these contiguous CPU tensors, not copied."""
    # Wide types first, so that every tensor starts at a multiple of its item size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in order:
        tensor = tensors[name]
        assert name != "__metadata__", "a tensor cannot have the name '__metadata__'"
        assert tensor.is_contiguous(), f"{name} is not contiguous"
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": dtype_name(name, tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        if tensors[name].numel():
            data = tensors[name].reshape(-1).view(torch.uint8).numpy().data
            for start in range(0, len(data), CHUNK_BYTES):
                yield data[start : start + CHUNK_BYTES]


def open_regular(path: Path) -> io.BufferedReader:
    """Opens a regular file for reading: no link, no pipe that would wait, no device."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise Damage("it is not a regular file")
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def check_file(path: Path, entry: FileEntry, *, digest: bool) -> None:
    """Raises `UserError` unless the file has its size and, if `digest`, its content."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != entry.bytes:
                raise Damage(f"it has {size:,} bytes instead of {entry.bytes:,}")
            if digest and _digest(file) != entry.sha256:
                raise Damage("its content does not match its sha256")
    except OSError as error:
        raise unreadable(path, error) from error
    except Damage as error:
        raise damaged(path, error) from error


def _digest(file: io.BufferedReader) -> str:
    digest, buffer = hashlib.sha256(), bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    while count := file.readinto(buffer):
        digest.update(view[:count])
    return digest.hexdigest()


def read_small(path: Path) -> bytes:
    """The bytes of a regular file that is meant to be small. Raises `UserError`."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise Damage(f"it has more than {MAX_JSON_BYTES:,} bytes")
    except OSError as error:
        raise unreadable(path, error) from error
    except Damage as error:
        raise damaged(path, error) from error
    return data


def parse_json(data: bytes) -> Any:
    """Strict JSON: finite numbers, no key twice, no absurd depth. Raises `Damage`."""
    try:
        return json.loads(
            data.decode(),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_short_int,
        )
    except RecursionError as error:
        raise Damage("its JSON is nested too deeply") from error
    except Damage:
        raise
    except ValueError as error:
        raise Damage(f"it is not JSON ({error})") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise Damage("a key occurs twice in its JSON")
    return result


def _no_constant(text: str) -> Any:
    raise Damage(f"its JSON has the number {text}")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise Damage(f"its JSON has the number {shown(text)}")
    return value


def _short_int(text: str) -> int:
    if len(text) > 100:  # reading a number takes time that grows with the square of its length
        raise Damage(f"its JSON has the number {shown(text)}")
    return int(text)
