"""Opening checkpoints: checks what is written in them before it is believed; reads tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.checkpoint.files import (
    DTYPES,
    REPAIR_HINT,
    Damage,
    check_file,
    damaged,
    parse_json,
    read_small,
    shown,
    unreadable,
)
from paceline.checkpoint.folders import candidates
from paceline.checkpoint.manifest import STATE, Manifest, Piece, read_manifest
from paceline.errors import UserError, nearest


class Checkpoint:
    """An open checkpoint, whose tensors are read when they are asked for.

    Its files stay open, so that it can be read to the end even after a newer save has removed it.
    """

    def __init__(
        self, path: Path, manifest: Manifest, state: dict[str, Any], files: Mapping[str, Any]
    ) -> None:
        self.path = path
        self.step = manifest.head.step
        self.state = state
        self._tensors = manifest.tensors
        self._files = files

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def dtype(self, name: str) -> torch.dtype:
        return DTYPES[self._entry(name).dtype]

    def read(self, name: str, slices: Sequence[slice] | None = None) -> Tensor:
        """A tensor, or the box of it that `slices` cut out, as a new CPU tensor; reads no more.

        slices: one for each dimension, of step 1; those left out at the end are whole.
        """
        entry = self._entry(name)
        box = _box(name, entry.shape, slices or ())
        result = torch.empty([stop - start for start, stop in box], dtype=DTYPES[entry.dtype])
        for piece in entry.pieces:
            self._copy(piece, box, result)
        return result

    def load(self, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Whole tensors by name; all of them by default."""
        return {name: self.read(name) for name in (self._tensors if names is None else names)}

    def _entry(self, name: str) -> Any:
        if name not in self._tensors:
            raise UserError(f"{self.path} has no tensor {name!r}", nearest(name, self.names()))
        return self._tensors[name]

    def _copy(self, piece: Piece, box: Sequence[tuple[int, int]], result: Tensor) -> None:
        """Copies what a piece and the box have in common."""
        source, target = [], []
        for (start, stop), offset, size in zip(box, piece.offsets, piece.sizes, strict=True):
            low, high = max(start, offset), min(stop, offset + size)
            if low >= high:
                return
            source.append(slice(low - offset, high - offset))
            target.append(slice(low - start, high - start))
        file = self._files[piece.file]
        if all(part == slice(0, size) for part, size in zip(source, piece.sizes, strict=True)):
            values = file.get_tensor(piece.key)
        else:
            values = file.get_slice(piece.key)[tuple(source)]
        result[tuple(target)].copy_(values)


def open_checkpoint(path: Path, *, verify: bool = True) -> Checkpoint:
    """Opens a checkpoint folder. Raises `UserError` that names the damaged file and what is wrong.

    verify: read every file once and compare its sha256; where one rank has, the others need not.
    All else (sizes, names, shapes, types, the manifest's own sha256) is always checked.
    """
    if not path.is_dir():
        raise UserError(
            f"there is no checkpoint {path}", "give a folder such as RUN/checkpoints/step-00000017"
        )
    manifest = read_manifest(path)
    for name, entry in manifest.files.items():
        check_file(path / name, entry, digest=verify)
    state = _read_state(path / STATE)
    files = {name: open_tensors(path / name) for name in manifest.files if name != STATE}
    _check_tensors(path, manifest, files)
    return Checkpoint(path, manifest, state, files)


def newest_whole(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and a sentence for each damaged one passed over."""
    passed_over = []
    for path in candidates(folder):
        try:
            open_checkpoint(path)
        except UserError as error:
            passed_over.append(error.what)
        else:
            return path, passed_over
    return None, passed_over


def open_tensors(path: Path, hint: str = REPAIR_HINT) -> Any:
    """Opens a safetensors file. Raises `UserError`."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except OSError as error:
        raise unreadable(path, error, hint) from error
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise damaged(path, f"it is no safetensors file ({error})", hint) from error


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = parse_json(read_small(path))
        if not isinstance(state, dict):
            raise Damage(f"it is {shown(state)}, not an object")
    except Damage as error:
        raise damaged(path, error) from error
    return state


def _check_tensors(path: Path, manifest: Manifest, files: Mapping[str, Any]) -> None:
    """Tensor files must hold just the keys that the manifest names, with its shapes and types."""
    expected: dict[str, dict[str, tuple[str, list[int]]]] = {name: {} for name in files}
    for entry in manifest.tensors.values():
        for piece in entry.pieces:
            expected[piece.file][piece.key] = (entry.dtype, list(piece.sizes))
    for name, file in files.items():
        keys = set(file.keys())
        if different := keys.symmetric_difference(expected[name]):
            key = min(different)
            reason = (
                f"has the tensor {shown(key)} that"
                if key in keys
                else f"lacks the tensor {shown(key)} that"
            )
            told = "the manifest does not name" if key in keys else "the manifest names"
            raise damaged(path / name, f"it {reason} {told}")
        for key, (dtype, sizes) in expected[name].items():
            stored = file.get_slice(key)
            if (stored.get_dtype(), stored.get_shape()) != (dtype, sizes):
                raise damaged(
                    path / name,
                    f"tensor {shown(key)} is {stored.get_dtype()} {shown(stored.get_shape())}, "
                    f"and the manifest says {dtype} {shown(sizes)}",
                )


def _box(name: str, shape: Sequence[int], slices: Sequence[slice]) -> list[tuple[int, int]]:
    if len(slices) > len(shape):
        raise ValueError(f"{len(slices)} slices for {name!r}, which has {len(shape)} dimensions")
    box = []
    for dim, size in enumerate(shape):
        start, stop, step = (slices[dim] if dim < len(slices) else slice(None)).indices(size)
        if step != 1:
            raise ValueError(f"a slice of {name!r} has the step {step}; only 1 can be read")
        box.append((start, max(start, stop)))
    return box
