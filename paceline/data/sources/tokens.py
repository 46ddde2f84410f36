"""Sequences from a memory-mapped file of token ids.

`NAME.bin` holds raw little-endian ids, and `NAME.json` beside it says of what kind: {"dtype": "uint16" or "uint32",
"vocabulary": 50257}, and whatever else its maker notes. `NAME.npy` holds a 1-d array of whole numbers; a `NAME.json`
may tell its vocabulary. `text_to_tokens.py` makes such files from text.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config.schema import DataConfig
from paceline.data.sources.base import Source, VectorSource
from paceline.data.sources.kind import Opened
from paceline.errors import UserError, nearest

DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_SUFFIXES = (".bin", ".npy")
_EVALUATION = ("val", "valid", "validation", "test")
_CHECKED_AT_ONCE = (
    1 << 25
)  # ids of a file that are checked when it is opened; of a larger one as they are read


@dataclass(frozen=True)
class TokenFile:
    """Where ids lie; opened anew in each process, since a memory map that is sent there would be copied."""

    path: Path
    dtype: np.dtype[Any]
    num_tokens: int
    vocabulary: int

    def map(self) -> np.ndarray:
        if self.path.suffix == ".npy":
            return np.load(self.path, mmap_mode="r", allow_pickle=False)
        return np.memmap(self.path, self.dtype, mode="r")


class Tokens(VectorSource):
    """Sample i: `length` ids from start + i x length on, and as target the ids that follow each."""

    def __init__(self, file: TokenFile, start: int, stop: int, length: int) -> None:
        self.name = str(file.path)
        self.num_classes = file.vocabulary
        self.unit, self.units_per_sample = "tokens", length
        self._file = file
        self._start, self._stop, self._length = start, stop, length
        self._ids: np.ndarray | None = None

    def __len__(self) -> int:
        return max(0, (self._stop - self._start - 1) // self._length)

    def load_many(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        if self._ids is None:
            self._ids = self._file.map()
        starts = self._start + indices * self._length
        rows = self._ids[starts[:, None] + np.arange(self._length + 1)].astype(np.int64)
        _check_ids(rows.ravel(), self._file, lambda at: int(starts[at // rows.shape[1]]))
        return {"input": rows[:, :-1].copy(), "target": rows[:, 1:].copy()}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ids": None}

    def digest(self) -> str:
        """Of the sizes and of some pages: reading all of a large file takes minutes."""
        ids = self._file.map()
        known = (self._file.num_tokens, self.num_classes, self._start, self._stop, self._length)
        digest = hashlib.blake2b(repr(known).encode(), digest_size=8)
        for start in np.linspace(self._start, max(self._start, self._stop - 2048), 64, dtype=int):
            digest.update(np.ascontiguousarray(ids[start : start + 2048], "<i8").tobytes())
        return digest.hexdigest()


def open_tokens(argument: str, config: DataConfig) -> Opened:
    """A folder with train and val files, or one file of which the end is held out."""
    path = _existing(argument, "data.source")
    if path.is_dir():
        train, evaluation = _part(path, ("train",)), _part(path, _EVALUATION)
        if train is None:
            raise UserError(
                f"data.source: {path} holds no train.bin or train.npy",
                "name the file itself, or put train.bin and val.bin into the folder",
            )
        file = read_header(train)
        other = None if evaluation is None else _whole(read_header(evaluation), config)
        return _checked(Opened(train=_whole(file, config), evaluation=other), config)
    file = read_header(path)
    if config.val_fraction == 0:
        return _checked(Opened(train=_whole(file, config), evaluation=None), config)
    length = config.sequence_length
    cut = file.num_tokens - max(round(file.num_tokens * config.val_fraction), length + 1)
    note = f"the last {file.num_tokens - cut:,} of {file.num_tokens:,} tokens are held out"
    opened = Opened(
        train=Tokens(file, 0, max(cut, 0), length),
        evaluation=Tokens(file, max(cut, 0), file.num_tokens, length),
        notes=[note],
    )
    return _checked(opened, config)


def open_evaluation_tokens(argument: str, config: DataConfig, train: Source) -> Source:
    path = _existing(argument, "data.eval_source")
    found = _part(path, _EVALUATION) if path.is_dir() else path
    if found is None:
        raise UserError(f"data.eval_source: {path} holds no val.bin or val.npy", "name the file")
    return _whole(read_header(found), config)


def _checked(opened: Opened, config: DataConfig) -> Opened:
    for source, what in ((opened.train, "training"), (opened.evaluation, "evaluation")):
        if source is not None and len(source) == 0:
            raise UserError(
                f"{source.name} has too few tokens for one {what} sequence of "
                f"data.sequence_length = {config.sequence_length} and the token that follows",
                "set a smaller data.sequence_length, or give more text",
            )
    return opened


def _whole(file: TokenFile, config: DataConfig) -> Tokens:
    return Tokens(file, 0, file.num_tokens, config.sequence_length)


def _existing(argument: str, setting: str) -> Path:
    if not argument:
        raise UserError(f'{setting} = "tokens:" names no file', "write tokens:PATH")
    path = Path(argument).expanduser()
    if not path.exists():
        near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{setting}: {path} does not exist", nearest(path.name, near))
    return path


def _part(folder: Path, names: tuple[str, ...]) -> Path | None:
    files = [folder / (name + suffix) for name in names for suffix in _SUFFIXES]
    return next((file for file in files if file.is_file()), None)


def read_header(path: Path) -> TokenFile:
    """What is known of a token file; its ids are checked where it is small."""
    if path.suffix not in _SUFFIXES:
        raise UserError(
            f"{path} is no token file",
            "give a .bin or .npy file; see the guide on data for how to make one",
        )
    about = _about(path)
    dtype, num_tokens = _npy(path) if path.suffix == ".npy" else _bin(path, about)
    if num_tokens == 0:
        raise UserError(f"{path} holds no tokens", "make it anew")
    file = TokenFile(path, dtype, num_tokens, 0)
    vocabulary = about.get("vocabulary")
    if vocabulary is None:
        vocabulary = int(max(part.max() for part in _parts(file))) + 1
    if not isinstance(vocabulary, int) or isinstance(vocabulary, bool) or vocabulary < 1:
        raise UserError(
            f"{path.with_suffix('.json')} says vocabulary = {vocabulary!r}", "give a whole number"
        )
    file = TokenFile(path, dtype, num_tokens, vocabulary)
    if num_tokens <= _CHECKED_AT_ONCE:
        start = 0
        for part in _parts(file):
            _check_ids(part, file, lambda at, start=start: start + at)
            start += len(part)
    return file


def _about(path: Path) -> dict[str, Any]:
    """The JSON beside a token file."""
    sidecar = path.with_suffix(".json")
    try:
        found = json.loads(sidecar.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {sidecar}: {error}", "correct it, or make it anew") from error
    if not isinstance(found, dict):
        raise UserError(f"{sidecar} holds no table", 'write {"dtype": "uint16", "vocabulary": …}')
    return found


def _bin(path: Path, about: dict[str, Any]) -> tuple[np.dtype[Any], int]:
    name = about.get("dtype")
    if name not in DTYPES:
        sidecar = path.with_suffix(".json")
        found = f"dtype = {name!r}" if name is not None else "no dtype"
        problem = f"{sidecar} says {found}" if about else f"{path} has no {sidecar.name} beside it"
        raise UserError(
            f"{problem}, so the kind of its ids is not known",
            f'write {{"dtype": "uint16", "vocabulary": …}} into {sidecar}; dtypes are {", ".join(DTYPES)}',
        )
    size, each = path.stat().st_size, DTYPES[name].itemsize
    if size % each:
        raise UserError(
            f"{path} has {size:,} bytes, which are no whole number of {name} ids of {each} bytes",
            "the file is cut off or of another dtype; make it anew or correct the JSON beside it",
        )
    return DTYPES[name], size // each


def _npy(path: Path) -> tuple[np.dtype[Any], int]:
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"cannot read {path}: {error}", "make it anew") from error
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise UserError(
            f"{path} holds an array of {ids.dtype} with shape {ids.shape}, and no token ids",
            "give a 1-d array of whole numbers, such as uint16",
        )
    return ids.dtype, len(ids)


def _parts(file: TokenFile) -> Any:
    ids = file.map()
    return (ids[start : start + (1 << 22)] for start in range(0, len(ids), 1 << 22))


def _check_ids(ids: np.ndarray, file: TokenFile, place: Any) -> None:
    """place: from a row of `ids` to about where it stands in the file."""
    if ids.max() < file.vocabulary and ids.min() >= 0:
        return
    at = int(np.flatnonzero((ids >= file.vocabulary) | (ids < 0))[0])
    raise UserError(
        f"{file.path} holds the id {int(ids[at])} near token {place(at):,}, and the vocabulary has "
        f"{file.vocabulary} tokens",
        "correct the vocabulary in the JSON beside it, or make the file anew with the right tokenizer",
    )
