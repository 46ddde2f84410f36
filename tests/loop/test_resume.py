"""A run that stopped anywhere goes on as if it had not: bit-equal in deterministic mode."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.checkpoint import newest_whole, open_checkpoint
from paceline.errors import UserError
from tests.loop.runs import NUM_SAMPLES, train_rank, weights
from tests.ranks import run_ranks

DETERMINISTIC: dict[str, Any] = {
    "deterministic": True,
    "precision__dtype": "fp32",
    "optim__ema_decay": 0.9,
    "optim__clip_norm": 0.1,
    "records__samples": True,
    "train__max_steps": 8,
    "train__epochs": 2,
}
MODEL = {"norm": "batch", "dropout": 0.5}


def train(folder: Path, num_ranks: int, **sets: Any) -> None:
    args = (folder, DETERMINISTIC | sets, MODEL, {"dtype": torch.float32})
    if num_ranks == 1:
        train_rank(*args)
    else:
        run_ranks(train_rank, num_ranks, *args)


def everything(folder: Path) -> dict[str, Tensor]:
    """All tensors of the newest checkpoint: model, optimizer, averages, loss scale, generators."""
    path, damaged = newest_whole(folder / "checkpoints")
    assert path is not None
    assert not damaged
    checkpoint = open_checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint.names()}


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


@pytest.mark.parametrize("stop", [2, 4, 6], ids=["in an epoch", "at its end", "in the second"])
@pytest.mark.parametrize("carried", ["sgd", "adamw fp16", "accumulation"])
def test_one_rank_goes_on_bit_equal(tmp_path: Path, carried: str, stop: int) -> None:
    sets: dict[str, Any] = {
        "sgd": {},
        "adamw fp16": {"optim__name": "adamw", "precision__dtype": "fp16", "optim__base_lr": 0.02},
        "accumulation": {"parallel__micro_batch": 4},
    }[carried]
    train(tmp_path / "whole", 1, **sets)
    schedule_kept = sets | {"checkpoint__every_steps": stop, "checkpoint__keep_last": 10}
    train(tmp_path / "parts", 1, **schedule_kept)
    remove_newer(tmp_path / "parts", stop)
    train(tmp_path / "parts", 1, **schedule_kept)
    assert_equal(everything(tmp_path / "parts"), everything(tmp_path / "whole"))


def remove_newer(folder: Path, step: int) -> None:
    """As if the run had been killed right after the checkpoint of `step`."""
    kept = folder / "checkpoints" / f"step-{step:08}"
    assert kept.exists()
    for path in (folder / "checkpoints").iterdir():
        if path.name.startswith("step-") and path != kept:
            shutil.rmtree(path)
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_go_on_bit_equal(tmp_path: Path, num_ranks: int) -> None:
    sets = {"checkpoint__every_steps": 3, "checkpoint__keep_last": 5}
    train(tmp_path / "whole", num_ranks, **sets)
    train(tmp_path / "parts", num_ranks, **sets)
    remove_newer(tmp_path / "parts", 3)
    train(tmp_path / "parts", num_ranks, **sets)
    assert_equal(everything(tmp_path / "parts"), everything(tmp_path / "whole"))
    assert torch.equal(*(weights(tmp_path / n)["conv1.weight"] for n in ("parts", "whole")))


def ledger(folder: Path, num_ranks: int) -> dict[int, list[int]]:
    """Sample indices by step over all ranks, later lines first."""
    by_rank: list[dict[int, list[int]]] = []
    for rank in range(num_ranks):
        text = (folder / "records" / f"rank-{rank}.jsonl").read_text()
        found = [r for r in map(json.loads, text.splitlines()) if r["kind"] == "samples"]
        by_rank.append({record["step"]: record["indices"] for record in found})
    return {s: [i for rank in by_rank for i in rank.get(s, [])] for s in by_rank[0]}


def test_the_ledger_has_every_sample_once_an_epoch_whatever_the_ranks(tmp_path: Path) -> None:
    sets = {"parallel__micro_batch": 2}
    ledgers = []
    for num_ranks in (1, 2, 3):
        train(tmp_path / str(num_ranks), num_ranks, **sets)
        ledgers.append(ledger(tmp_path / str(num_ranks), num_ranks))
    assert ledgers[0] == ledgers[1] == ledgers[2]
    for epoch in (0, 1):
        steps = range(4 * epoch + 1, 4 * epoch + 5)
        assert sorted(i for s in steps for i in ledgers[0][s]) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize(
    ("change", "named"),
    [({"seed": 7}, "seed"), ({"train__global_batch": 24}, "train.global_batch")],
)
def test_another_experiment_is_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    train(tmp_path, 1, train__max_steps=2)
    with pytest.raises(UserError, match=f"{named} has changed since the checkpoint"):
        train(tmp_path, 1, **change)


def test_a_run_can_be_lengthened(tmp_path: Path) -> None:
    train(tmp_path, 1, train__max_steps=2)
    train(tmp_path, 1, train__max_steps=5)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["step"]) == ("finished", 5)
