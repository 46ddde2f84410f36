"""The number of devices changes speed, not results: against a plain PyTorch loop over the whole batch, in fp64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paceline.data.order import permutation
from paceline.loop.setup import Objects
from paceline.loop.stopping import StopRequest
from paceline.loop.train import run
from paceline.records.folder import RunFolder
from tests.loop.runs import (
    BAD,
    Net,
    Points,
    config_of,
    largest_difference,
    train_rank,
    weights,
)
from tests.ranks import run_ranks

STEPS, BATCH, EPOCHS = 5, 12, 2


def plain_loop(optimizer_name: str, clip: float, bad: tuple[int, ...]) -> dict[str, Tensor]:
    """Five steps over whole batches, written without Paceline; the fourth is a tail of 5 samples."""
    torch.manual_seed(0)
    net = Net().double()
    points = Points(bad=bad)
    steps_per_epoch = math.ceil(len(points) / BATCH)
    peak, warmup, total = 2.0 * BATCH / 256, round(0.5 * steps_per_epoch), STEPS
    if optimizer_name == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            net.parameters(), lr=1, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1, weight_decay=5e-4)
    for step in range(STEPS):
        epoch, position = step // steps_per_epoch, step % steps_per_epoch * BATCH
        indices = [int(i) for i in permutation(0, epoch, len(points))[position : position + BATCH]]
        good = [i for i in indices if i not in bad]
        rate = peak * (step + 1) / warmup
        if step >= warmup:
            rate = peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        functional.cross_entropy(net(points.x[good]), points.y[good]).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
    return net.state_dict()


CARRIED = {
    "one big batch": (1, {}),
    "accumulation 4": (1, {"parallel__micro_batch": 3}),
    "2 ranks": (2, {}),
    "3 ranks": (3, {}),
    "3 ranks, accumulation 2": (3, {"parallel__micro_batch": 2}),
    "dp over 3": (1, {"parallel__strategy": "dp", "parallel__ranks": 3}),
}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("bad", [(), BAD], ids=["", "skipped"])
@pytest.mark.parametrize("carried", CARRIED)
def test_any_number_of_devices_computes_what_a_plain_loop_does(
    tmp_path: Path, carried: str, bad: tuple[int, ...], clip: float, optimizer: str
) -> None:
    num_ranks, sets = CARRIED[carried]
    sets = sets | {"optim__name": optimizer, "optim__clip_norm": clip}
    if bad:
        sets["data__on_bad_sample"] = "skip"
    run_it(tmp_path, num_ranks, sets, data={"bad": bad})
    assert largest_difference(weights(tmp_path), plain_loop(optimizer, clip, bad)) < 1e-9


def run_it(folder: Path, num_ranks: int, sets: dict[str, Any], **kwargs: Any) -> None:
    if num_ranks == 1:
        train_rank(folder, sets, **kwargs)
    else:
        run_ranks(train_rank, num_ranks, folder, sets, kwargs.get("model"), kwargs.get("data"))


def test_batchnorm_keeps_its_statistics_when_ranks_change_and_the_micro_batch_does_not(
    tmp_path: Path,
) -> None:
    """Weights and running statistics: 1 rank with 6 micro-batches, 2 with 3, 3 with 2."""
    sets = {"parallel__micro_batch": 2}
    for num_ranks in (1, 2, 3):
        run_it(tmp_path / str(num_ranks), num_ranks, sets, model={"norm": "batch"})
    one = weights(tmp_path / "1")
    assert not torch.equal(one["norm1.running_mean"], torch.zeros(8))
    for num_ranks in (2, 3):
        assert largest_difference(weights(tmp_path / str(num_ranks)), one) < 1e-9


def test_dropout_masks_stay_when_ranks_change_and_the_micro_batch_does_not(tmp_path: Path) -> None:
    sets = {"parallel__micro_batch": 2}
    for num_ranks in (1, 2, 3):
        run_it(tmp_path / str(num_ranks), num_ranks, sets, model={"dropout": 0.5})
    one = weights(tmp_path / "1")
    for num_ranks in (2, 3):
        assert largest_difference(weights(tmp_path / str(num_ranks)), one) < 1e-9


def test_two_runs_of_one_seed_are_equal_and_of_two_seeds_are_not(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run_it(tmp_path / name, 2, {"seed": seed}, model={"dropout": 0.5})
    a, b, c = (weights(tmp_path / name) for name in "abc")
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert not any(torch.equal(a[n], c[n]) for n in a if "norm" not in n)


def test_a_buffer_that_the_model_changes_itself_is_rank_0s_everywhere(tmp_path: Path) -> None:
    """Such as a codebook's: DDP's own rule, kept without sending buffers that never change."""
    values = run_ranks(buffer_after_training, 2, tmp_path)
    assert torch.equal(values[0], values[1])
    assert float(values[0].abs().sum()) > 0


def buffer_after_training(folder: Path) -> Tensor:
    run_folder = RunFolder(folder)
    run_folder.create()
    net = Remembering()
    objects = Objects(model=lambda: net, data=Points(), eval_data=Points(num=13))
    run(run_folder, config_of(), stop=StopRequest(), objects=objects)
    return net.seen


class Remembering(Net):
    """Keeps the mean of the last inputs that it was trained on."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = x.detach().mean(dim=(0, 2, 3))
        return super().forward(x)
