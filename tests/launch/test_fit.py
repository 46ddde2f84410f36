"""The largest micro-batch that fits, found by real ranks under a real limit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import paceline
from paceline.launch.fit import Tried, _search, sizes_of
from tests.loop.runs import NUM_CLASSES, Points
from tests.loop.shortages import limit, records

ROW = 64 << 20  # bytes that a sample takes in a pass
BUDGETS = (700 << 20, 320 << 20)  # of the ranks


class Wide(nn.Module):
    """Takes ROW bytes a sample, never touched, until the backward pass is over."""

    def __init__(self) -> None:
        super().__init__()
        limit(BUDGETS[int(os.environ.get("RANK", "0"))])
        self.head = nn.Linear(2 * 8 * 8, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        workspace = torch.empty(len(x) * ROW, dtype=torch.uint8)
        return Using.apply(self.head(x.flatten(1)), workspace)


class Using(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, workspace: Tensor) -> Tensor:
        ctx.save_for_backward(workspace)
        return x.clone()

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor
    ) -> tuple[Tensor, None]:
        return gradients[0], None


def test_auto_is_the_largest_that_fits_every_rank_with_a_margin(tmp_path: Path) -> None:
    """Of 8 samples a rank, one has room for all and the other for 4."""
    config = {
        "device": "cpu",
        "parallel.micro_batch": "auto",
        "parallel.ranks": 2,
        "train.global_batch": 16,
        "train.eval_batch": 1,
        "train.max_steps": 2,
        "data.workers": 0,
    }
    data = Points(torch.float32)
    result = paceline.train(
        config, run=tmp_path / "run", model=Wide, data=data, eval_data=data, show=False
    )
    assert result.status == "finished"
    found = json.loads((result.folder / "probe.json").read_text())
    assert found["micro_batch"] == 4
    assert [(t["micro_batch"], t["short"]) for t in found["tried"]] == [
        (1, []),
        (2, []),
        (4, []),
        (8, [1]),
    ]
    assert "micro_batch = 4\n" in (result.folder / "config.toml").read_text()
    (start,) = records(result.folder, 0, "start")
    assert start["micro_batch"] == 4
    assert any("micro_batch = 4 was found by trying, with 10%" in note for note in start["notes"])


@pytest.mark.parametrize("fits", [1, 2, 3, 8, 9, 24, 36])
def test_the_search_ends_at_the_largest_size_that_fits(fits: int) -> None:
    launches: list[list[int]] = []

    def try_sizes(sizes: list[int]) -> list[Tried]:
        launches.append(list(sizes))
        tried = [Tried(n, [] if n <= fits else [1], [0]) for n in sizes]
        short = [n for n, each in enumerate(tried) if each.short]
        return tried[: short[0] + 1] if short else tried

    tried = _search(sizes_of(36, 1), try_sizes)
    best = max(each.micro_batch for each in tried if not each.short)
    assert best == max(n for n in sizes_of(36, 1) if n <= fits)
    assert len(launches) <= 3
