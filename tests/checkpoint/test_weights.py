"""Files of final weights: what others read, what is refused, and what a failed write leaves."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from paceline.checkpoint import load_weights, save_weights
from paceline.errors import UserError
from tests.checkpoint.helpers import assert_same, tensors_of


def test_weights_come_back_and_are_read_by_the_safetensors_library(tmp_path: Path) -> None:
    path = tmp_path / "run" / "model.safetensors"
    tied = torch.randn(3, 4)
    tensors = tensors_of(1) | {
        "tied/a": tied,
        "tied/b": tied,
        "transposed": tied.t(),
        "parameter": nn.Parameter(torch.ones(2)),
        "scalar": torch.tensor(1.5, dtype=torch.bfloat16),
        "empty": torch.empty(0, 2),
    }
    save_weights(path, tensors)
    assert_same(load_weights(path), tensors)
    assert_same(load_file(path), tensors)
    loaded = load_weights(path)
    loaded["tied/a"].zero_()  # belongs to the reader
    assert_same(load_weights(path), tensors)


def test_weights_of_the_safetensors_library_are_read(tmp_path: Path) -> None:
    save_file(tensors_of(1), tmp_path / "theirs.safetensors")
    (tmp_path / "link.safetensors").symlink_to("theirs.safetensors")
    assert_same(load_weights(tmp_path / "link.safetensors"), tensors_of(1))


def test_writing_replaces_in_one_step_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    old = os.umask(0o022)
    try:
        save_weights(path, tensors_of(1))
        (tmp_path / ".model.safetensors.partial").write_text("left by a kill")
        save_weights(path, tensors_of(2))
    finally:
        os.umask(old)
    assert_same(load_weights(path), tensors_of(2))
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(path, tensors_of(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(UserError, match="could not be written: File too large"):
            save_weights(path, tensors_of(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_same(load_weights(path), tensors_of(1))
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("kind", ["missing", "folder", "pickle", "truncated", "pipe"])
def test_what_is_no_weights_file_is_a_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.safetensors"
    if kind == "folder":
        path.mkdir()
    elif kind == "pickle":
        torch.save(tensors_of(1), path)
    elif kind == "truncated":
        save_weights(path, tensors_of(1))
        os.truncate(path, 1000)
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(UserError) as caught:
        load_weights(path)
    assert caught.value.what.startswith(f"{path} is ")
    assert "give a .safetensors file" in caught.value.hint


def test_a_type_that_torch_lacks_is_a_sentence(tmp_path: Path) -> None:
    header = b'{"a":{"dtype":"F8_E8M0","shape":[8],"data_offsets":[0,8]}}'
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(UserError, match=r"odd\.safetensors (has the tensor 'a' of|is damaged)"):
        load_weights(path)
