"""Weights for others to use: one safetensors file, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from paceline.checkpoint.files import (
    DTYPES,
    Damage,
    damaged,
    open_regular,
    reason_of,
    shown,
    sync_folder,
    tensor_chunks,
    unreadable,
    write_file,
)
from paceline.checkpoint.read import open_tensors
from paceline.errors import UserError

_HINT = "give a .safetensors file, such as a run's model.safetensors"


def save_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes whole tensors; an existing file is replaced in one step. Raises `UserError`."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    partial = path.parent / f".{path.name}.partial"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        write_file(partial, tensor_chunks(plain))
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(
            f"{path} could not be written: {reason_of(error)}",
            "free some space or choose another folder",
        ) from error


def load_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU. Raises `UserError` that names the file."""
    try:
        open_regular(Path(os.path.realpath(path))).close()
    except OSError as error:
        raise unreadable(path, error, _HINT) from error
    except Damage as error:
        raise damaged(path, error, _HINT) from error
    file = open_tensors(path, _HINT)
    result = {}
    for name in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
        dtype = file.get_slice(name).get_dtype()
        if dtype not in DTYPES:
            raise UserError(
                f"{path} has the tensor {shown(name)} of the unsupported type {dtype}", "convert it"
            )
        result[name] = file.get_tensor(name).clone(memory_format=torch.contiguous_format)
    return result
