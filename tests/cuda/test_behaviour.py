"""The loop's behaviour on CUDA: the same runs as on the CPU, where there are GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.checkpoint import newest_whole, open_checkpoint
from tests.loop.runs import largest_difference, train_rank, weights
from tests.ranks import run_ranks

NUM_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(NUM_GPUS == 0, reason="no GPU here"),
]
two_gpus = pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs")
ON_GPU: dict[str, Any] = {"device": "cuda", "parallel__ranks": 1}
FP32 = {"dtype": torch.float32}


def test_fp64_equals_the_cpu(tmp_path: Path) -> None:
    train_rank(tmp_path / "cpu", {})
    train_rank(tmp_path / "gpu", ON_GPU)
    assert largest_difference(weights(tmp_path / "gpu"), weights(tmp_path / "cpu")) < 1e-9


def test_accumulation_equals_one_pass(tmp_path: Path) -> None:
    for name, micro_batch in (("whole", 0), ("parts", 3)):
        train_rank(tmp_path / name, ON_GPU | {"parallel__micro_batch": micro_batch})
    assert largest_difference(weights(tmp_path / "parts"), weights(tmp_path / "whole")) < 1e-9


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_every_precision_learns_and_resumes_bit_equal(tmp_path: Path, precision: str) -> None:
    sets = ON_GPU | {
        "precision__dtype": precision,
        "deterministic": True,
        "optim__ema_decay": 0.9,
        "train__max_steps": 8,
    }
    model = {"norm": "batch", "dropout": 0.5}
    train_rank(tmp_path / "whole", sets, model, FP32)
    for steps in (3, 8):
        limits = {"train__max_steps": steps, "optim__schedule": "constant"}
        train_rank(tmp_path / "parts", sets | limits, model, FP32)
    train_rank(tmp_path / "again", sets | {"optim__schedule": "constant"}, model, FP32)
    for name in tensors(tmp_path / "again"):
        a, b = tensors(tmp_path / "again")[name], tensors(tmp_path / "parts")[name]
        assert torch.equal(a, b), name


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    path, _ = newest_whole(folder / "checkpoints")
    assert path is not None
    checkpoint = open_checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint.names()}


def test_phases_and_memory_are_recorded(tmp_path: Path) -> None:
    train_rank(tmp_path, ON_GPU | {"precision__dtype": "fp32"}, None, FP32)
    lines = (tmp_path / "records/rank-0.jsonl").read_text().splitlines()
    steps = [r for r in map(json.loads, lines) if r["kind"] == "step"]
    assert steps
    for step in steps:
        assert sum(step["phases"].values()) == pytest.approx(step["step_s"], rel=1e-3)
        assert step["phases"]["forward"] > 0
        assert step["memory_bytes"] > 0


@two_gpus
def test_ddp_over_nccl_equals_one_device(tmp_path: Path) -> None:
    train_rank(tmp_path / "one", ON_GPU | {"parallel__micro_batch": 2}, {"norm": "batch"})
    run_ranks(
        train_rank,
        2,
        tmp_path / "two",
        {"device": "cuda", "parallel__micro_batch": 2},
        {"norm": "batch"},
    )
    assert largest_difference(weights(tmp_path / "two"), weights(tmp_path / "one")) < 1e-9


@two_gpus
def test_dp_equals_one_device(tmp_path: Path) -> None:
    train_rank(tmp_path / "one", ON_GPU)
    train_rank(tmp_path / "dp", ON_GPU | {"parallel__strategy": "dp", "parallel__ranks": 2})
    assert largest_difference(weights(tmp_path / "dp"), weights(tmp_path / "one")) < 1e-9
