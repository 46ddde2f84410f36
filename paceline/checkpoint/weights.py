"""Weights for others to use: one safetensors file, written whole or not at all."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from paceline.checkpoint.read import newest_whole, open_checkpoint, open_tensors
from paceline.errors import UserError

_HINT = "give a .safetensors file, such as a run's model.safetensors, or a .pth file"
_TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt")
_WRAPPERS = ("state_dict", "model_state_dict", "model")


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
    """The tensors of a safetensors or PyTorch file, or of a run folder, on the CPU. Raises `UserError` that names it.

    Of a run, the final weights, or the newest checkpoint's where it has not finished. No code in a file is run.
    """
    if path.is_dir():
        return _of_run(path)
    try:
        open_regular(Path(os.path.realpath(path))).close()
    except OSError as error:
        raise unreadable(path, error, _HINT) from error
    except Damage as error:
        raise damaged(path, error, _HINT) from error
    return _of_torch(path) if path.suffix in _TORCH_SUFFIXES else _of_safetensors(path)


def _of_safetensors(path: Path) -> dict[str, Tensor]:
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


def _of_torch(path: Path) -> dict[str, Tensor]:
    """What torch.save wrote: a state dict, also one that lies under the name that training scripts give it."""
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds more than tensors, and reading that could run code: it is not read",
            "save the state alone: torch.save(model.state_dict(), …), or as safetensors",
        ) from error
    except (
        RuntimeError,
        EOFError,
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        OSError,
    ) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{path} is no file that torch.save wrote: {reason}", _HINT) from error
    for key in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        others = (
            sorted(k for k, v in found.items() if not isinstance(v, Tensor))
            if isinstance(found, Mapping)
            else []
        )
        held = f"{', '.join(map(str, others[:4]))}" if others else f"a {type(found).__name__}"
        raise UserError(
            f"{path} holds {held} where a model's state was expected",
            f"save model.state_dict(), alone or under one of {', '.join(_WRAPPERS)}",
        )
    return {str(name): tensor.detach().contiguous() for name, tensor in found.items()}


def _of_run(folder: Path) -> dict[str, Tensor]:
    if (folder / "model.safetensors").exists():
        return _of_safetensors(folder / "model.safetensors")
    path, damages = newest_whole(folder / "checkpoints")
    if path is None:
        more = f" ({'; '.join(damages)})" if damages else ""
        raise UserError(
            f"{folder} is a folder with neither model.safetensors nor a whole checkpoint{more}",
            _HINT,
        )
    checkpoint = open_checkpoint(path, verify=False)
    names = [name for name in checkpoint.names() if name.startswith("model/")]
    return {name.removeprefix("model/"): checkpoint.read(name) for name in names}
