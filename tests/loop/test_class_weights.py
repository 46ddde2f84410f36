"""Class weights: the gradient is sum(weight x loss) / samples, however the samples are spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paceline.config.load import load_config
from paceline.data.order import permutation
from paceline.errors import UserError
from paceline.models.class_weights import class_weights
from paceline.models.objective import make_objective
from tests.loop.runs import BAD, Net, Points, largest_difference, train_rank, weights
from tests.ranks import run_ranks

WEIGHTS = [0.5, 2.0, 0.0, 1.0, 3.0]
STEPS, BATCH = 5, 12  # the fourth step is a tail of five samples
PLAIN = {"optim__schedule": "constant", "optim__warmup_epochs": 0, "optim__lr_scaling": "none"}
SETS: dict[str, Any] = PLAIN | {
    "train__class_weights": WEIGHTS,
    "optim__base_lr": 0.1,
    "optim__momentum": 0.0,
    "optim__nesterov": False,
    "optim__weight_decay": 0.0,
    "data__on_bad_sample": "skip",
}


def plain_loop() -> Tensor | Any:
    torch.manual_seed(0)
    net, points = Net().double(), Points(bad=BAD)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(STEPS):
        epoch, position = step // 4, step % 4 * BATCH
        indices = permutation(0, epoch, len(points))[position : position + BATCH].tolist()
        good = [i for i in indices if i not in BAD]
        y = points.y[good]
        losses = functional.cross_entropy(net(points.x[good]), y, reduction="none")
        optimizer.zero_grad()
        ((losses * torch.tensor(WEIGHTS).double()[y]).sum() / len(good)).backward()
        optimizer.step()
    return net.state_dict()


@pytest.mark.parametrize(
    ("num_ranks", "sets"), [(1, {}), (1, {"parallel__micro_batch": 3}), (3, {})]
)
def test_ranks_accumulation_tails_and_skipped_samples(
    tmp_path: Path, num_ranks: int, sets: dict[str, Any]
) -> None:
    args = (tmp_path, SETS | sets, None, {"bad": BAD})
    if num_ranks == 1:
        train_rank(*args)
    else:
        run_ranks(train_rank, num_ranks, *args)
    assert largest_difference(weights(tmp_path), plain_loop()) < 1e-9


def test_a_loss_of_the_users_is_not_weighted_without_a_word() -> None:
    config = load_config(flags={"train.class_weights": [1.0, 2.0]}).config
    with pytest.raises(UserError, match="no effect on the loss that was given"):
        make_objective(config.train, num_classes=2, loss=functional.mse_loss)
    with pytest.raises(UserError, match="no effect on the loss bce"):
        make_objective(config.train, num_classes=2, target=torch.zeros(1, 2))


def test_balanced_has_the_mean_1_over_the_training_set() -> None:
    counts = np.array([90, 9, 1, 0])
    found = class_weights("balanced", 4, counts)
    assert found == pytest.approx((100 / 270, 100 / 27, 100 / 3, 0.0))
    assert np.dot(found or (), counts) == pytest.approx(100)
    assert class_weights("none", 4, counts) is None


@pytest.mark.parametrize(
    ("setting", "num_classes", "counts", "part"),
    [
        ([1.0, 2.0], 3, None, "has 2 weights, and there are 3 classes"),
        ([1.0, -2.0], 2, None, "weights are at least 0"),
        ("balanced", 3, None, "needs the class of every sample"),
    ],
)
def test_wrong_class_weights(setting: Any, num_classes: int, counts: Any, part: str) -> None:
    with pytest.raises(UserError, match="hint: ") as caught:
        class_weights(setting, num_classes, counts)
    assert part in str(caught.value)
