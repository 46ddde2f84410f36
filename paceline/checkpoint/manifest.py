"""`manifest.json`: what a checkpoint consists of, read strictly; opens no tensor file."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.checkpoint.files import (
    DTYPES,
    MAX_JSON_BYTES,
    Damage,
    FileEntry,
    damaged,
    parse_json,
    read_small,
    shown,
)
from paceline.errors import UserError

FORMAT = "paceline-checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
STATE = "state.json"
MAX_DIMS = 64
MAX_NUMBER = 2**62

_FIRST_LINE = re.compile(rb'\{"sha256": "([0-9a-f]{64})",\n')
_SECOND_LINE = re.compile(rb'"head": (\{[^\n]*\}),\n')
_TENSOR_FILE = re.compile(r"rank-[0-9]{1,9}\.safetensors")


@dataclass(frozen=True)
class Piece:
    """A box of a tensor, stored under `key` in `file`: of shape `sizes`, starting at `offsets`."""

    file: str
    key: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class TensorEntry:
    """A tensor and where its pieces lie. They form a grid; a tensor without elements has none."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Head:
    """What retention needs to know of a checkpoint.

    serial: counts saves; it tells the newest even after a run went back to an earlier step.
    """

    step: int
    serial: int
    best: bool
    num_ranks: int


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says."""

    head: Head
    files: Mapping[str, FileEntry]
    tensors: Mapping[str, TensorEntry]


def encode(manifest: Manifest) -> bytes:
    """The file's bytes: one JSON object on three lines.

    The first line holds the sha256 of everything after it, the second the head alone.
    """
    head = json.dumps({"format": FORMAT, "version": VERSION, **vars(manifest.head)})
    files = {name: vars(entry) for name, entry in manifest.files.items()}
    tensors = {
        name: {**vars(entry), "pieces": [vars(piece) for piece in entry.pieces]}
        for name, entry in manifest.tensors.items()
    }
    body = json.dumps({"files": files, "tensors": tensors})
    rest = f'"head": {head},\n{body[1:]}\n'.encode()
    data = b'{"sha256": "' + hashlib.sha256(rest).hexdigest().encode() + b'",\n' + rest
    assert len(data) <= MAX_JSON_BYTES, f"a manifest of {len(data):,} bytes is too large to read"
    return data


def read_head(folder: Path) -> Head:
    """Reads the head of a manifest, after checking the manifest's sha256. Raises `UserError`."""
    path = folder / MANIFEST
    data = read_small(path)
    try:
        return _head(path, data)[0]
    except Damage as error:
        raise damaged(path, error) from error


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks the manifest of a checkpoint folder. Raises `UserError`."""
    path = folder / MANIFEST
    data = read_small(path)
    try:
        head, raw_head = _head(path, data)
        raw = parse_json(data)
        _fields(raw, {"sha256", "head", "files", "tensors"}, "the manifest")
        if raw["head"] != raw_head:
            raise Damage("its head is not on its second line")
        return _manifest(head, raw)
    except Damage as error:
        raise damaged(path, error) from error


def _head(path: Path, data: bytes) -> tuple[Head, dict[str, Any]]:
    first = _FIRST_LINE.match(data)
    if first is None:
        raise Damage("it does not begin with its own sha256")
    if hashlib.sha256(data[first.end() :]).hexdigest().encode() != first[1]:
        raise Damage("its content does not match its sha256")
    second = _SECOND_LINE.match(data, first.end())
    if second is None:
        raise Damage("its head is not on its second line")
    raw = _object(parse_json(second[1]), "the head")
    if raw.get("format") != FORMAT:
        raise Damage(f"its format is {shown(raw.get('format'))}")
    if _whole(raw.get("version"), "version") != VERSION:
        raise UserError(
            f"{path} has the format version {raw['version']}, but only {VERSION} is known here",
            "use the version of Paceline that wrote it, or another checkpoint",
        )
    _fields(raw, {"format", "version", "step", "serial", "best", "num_ranks"}, "the head")
    if not isinstance(raw["best"], bool):
        raise Damage(f"best is {shown(raw['best'])}, not true or false")
    numbers = {name: _whole(raw[name], name) for name in ("step", "serial", "num_ranks")}
    return Head(best=raw["best"], **numbers), raw


def _manifest(head: Head, raw: dict[str, Any]) -> Manifest:
    files = {name: _file(name, entry) for name, entry in _object(raw["files"], "files").items()}
    if STATE not in files:
        raise Damage(f"it does not list {STATE}")
    tensors = {
        name: _tensor(name, entry) for name, entry in _object(raw["tensors"], "tensors").items()
    }
    _check_keys(tensors, files)
    return Manifest(head, files, tensors)


def _file(name: str, raw: Any) -> FileEntry:
    if name != STATE and not _TENSOR_FILE.fullmatch(name):
        raise Damage(f"it lists the file {shown(name)}, which is no name of a checkpoint's file")
    _fields(raw, {"bytes", "sha256"}, f"file {name}")
    if not isinstance(raw["sha256"], str) or not re.fullmatch("[0-9a-f]{64}", raw["sha256"]):
        raise Damage(f"file {name} has the sha256 {shown(raw['sha256'])}")
    return FileEntry(_whole(raw["bytes"], f"bytes of {name}"), raw["sha256"])


def _tensor(name: str, raw: Any) -> TensorEntry:
    what = f"tensor {shown(name)}"
    _fields(raw, {"dtype", "shape", "pieces"}, what)
    if not isinstance(raw["dtype"], str) or raw["dtype"] not in DTYPES:
        raise Damage(f"{what} has the dtype {shown(raw['dtype'])}")
    shape = _numbers(raw["shape"], f"shape of {what}")
    if math.prod(max(size, 1) for size in shape) >= 2**60:
        raise Damage(f"{what} has the absurd shape {shown(list(shape))}")
    if not isinstance(raw["pieces"], list):
        raise Damage(f"{what} has no list of pieces")
    entry = TensorEntry(
        raw["dtype"], shape, tuple(_piece(what, piece, shape) for piece in raw["pieces"])
    )
    check_grid(what, entry)
    return entry


def _piece(what: str, raw: Any, shape: tuple[int, ...]) -> Piece:
    _fields(raw, {"file", "key", "offsets", "sizes"}, f"a piece of {what}")
    if not isinstance(raw["file"], str) or not isinstance(raw["key"], str):
        raise Damage(f"a piece of {what} has no file and key")
    offsets, sizes = (_numbers(raw[field], f"{field} of {what}") for field in ("offsets", "sizes"))
    if not len(offsets) == len(sizes) == len(shape):
        raise Damage(f"a piece of {what} has another number of dimensions than the tensor")
    for offset, size, whole in zip(offsets, sizes, shape, strict=True):
        if size == 0 or offset + size > whole:
            raise Damage(f"a piece of {what} does not lie inside the tensor")
    return Piece(raw["file"], raw["key"], offsets, sizes)


def check_grid(what: str, entry: TensorEntry) -> None:
    """Pieces must be the boxes between cuts through a tensor, each once. Raises `Damage`."""
    if math.prod(entry.shape) == 0:
        if entry.pieces:
            raise Damage(f"{what} has pieces but no elements")
        return
    num_boxes = 1
    for dim, whole in enumerate(entry.shape):
        spans = sorted({(piece.offsets[dim], piece.sizes[dim]) for piece in entry.pieces})
        num_boxes *= len(spans)
        ends = [0, *(offset + size for offset, size in spans)]
        if [offset for offset, _ in spans] != ends[:-1] or ends[-1] != whole:
            raise Damage(f"the pieces of {what} overlap or leave a gap in dimension {dim}")
    if (
        len({piece.offsets for piece in entry.pieces}) != len(entry.pieces)
        or len(entry.pieces) != num_boxes
    ):
        raise Damage(f"the pieces of {what} overlap or leave a gap")


def _check_keys(tensors: Mapping[str, TensorEntry], files: Mapping[str, FileEntry]) -> None:
    """Each key belongs to one piece only, so that no tensor is larger than the files."""
    used: set[tuple[str, str]] = set()
    for name, entry in tensors.items():
        for piece in entry.pieces:
            if piece.file not in files or piece.file == STATE:
                raise Damage(
                    f"tensor {shown(name)} lies in {shown(piece.file)}, which is no listed file"
                )
            if (piece.file, piece.key) in used:
                raise Damage(f"the key {shown(piece.key)} of {piece.file} is used twice")
            used.add((piece.file, piece.key))


def _fields(raw: Any, names: set[str], what: str) -> None:
    if set(_object(raw, what)) != names:
        raise Damage(f"{what} must have exactly the fields {', '.join(sorted(names))}")


def _object(raw: Any, what: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise Damage(f"{what} is {shown(raw)}, not an object")
    return raw


def _whole(raw: Any, what: str) -> int:
    if type(raw) is not int or not 0 <= raw <= MAX_NUMBER:
        raise Damage(f"{what} is {shown(raw)}, not a whole number from 0 up")
    return raw


def _numbers(raw: Any, what: str) -> tuple[int, ...]:
    if not isinstance(raw, list) or len(raw) > MAX_DIMS:
        raise Damage(f"{what} is {shown(raw)}, not a list of sizes")
    return tuple(_whole(value, what) for value in raw)
