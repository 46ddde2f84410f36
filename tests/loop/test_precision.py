"""First-step gradients agree in fp32; every precision trains; fp16 steps over an overflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.checkpoint import newest_whole, open_checkpoint
from tests.loop.runs import largest_difference, train_rank
from tests.ranks import run_ranks

FP32 = {"dtype": torch.float32}
# One step of SGD with momentum from nothing: the momentum buffer is the gradient.
ONE_STEP: dict[str, Any] = {
    "precision__dtype": "fp32",
    "train__max_steps": 1,
    "optim__weight_decay": 0.0,
}


def first_gradients(folder: Path) -> dict[str, Tensor]:
    path, _ = newest_whole(folder / "checkpoints")
    assert path is not None
    checkpoint = open_checkpoint(path)
    names = [n for n in checkpoint.names() if n.endswith("/momentum_buffer")]
    assert len(names) == 8
    return {name: checkpoint.read(name) for name in names}


def test_first_step_gradients_agree_in_fp32(tmp_path: Path) -> None:
    train_rank(tmp_path / "one", ONE_STEP, None, FP32)
    whole = first_gradients(tmp_path / "one")
    train_rank(tmp_path / "accumulated", ONE_STEP | {"parallel__micro_batch": 3}, None, FP32)
    dp = {"parallel__strategy": "dp", "parallel__ranks": 3}
    train_rank(tmp_path / "dp", ONE_STEP | dp, None, FP32)
    for ranks in (2, 3):
        run_ranks(train_rank, ranks, tmp_path / f"ranks{ranks}", ONE_STEP, None, FP32)
    for name in ("accumulated", "dp", "ranks2", "ranks3"):
        assert largest_difference(first_gradients(tmp_path / name), whole) < 1e-5, name


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "fp64"])
def test_every_precision_learns(tmp_path: Path, precision: str) -> None:
    sets = {"precision__dtype": precision, "train__max_steps": 0, "train__epochs": 12}
    train_rank(tmp_path, sets, None, FP32)
    text = (tmp_path / "records/rank-0.jsonl").read_text()
    losses = [r["train_loss"] for r in map(json.loads, text.splitlines()) if r["kind"] == "epoch"]
    assert losses[-1] < losses[0] - 0.1


def test_fp16_steps_over_an_overflow_and_halves_its_scale(tmp_path: Path) -> None:
    sets = {"precision__dtype": "fp16", "precision__initial_scale": 2.0**24}
    train_rank(tmp_path, sets, {"norm": "batch"}, FP32)
    text = (tmp_path / "records/rank-0.jsonl").read_text()
    steps = [r for r in map(json.loads, text.splitlines()) if r["kind"] == "step"]
    scales = [step["loss_scale"] for step in steps]
    assert scales == sorted(scales, reverse=True)
    assert scales[-1] < 2.0**24
    assert all(torch.isfinite(torch.tensor(step["loss"])) for step in steps)
