"""Losses by name: equal to torch's means over the samples that count, whatever the split; what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paceline.config.schema import TrainConfig
from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.models.objective import make_objective

N, CLASSES = 23, 5


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def targets(kind: str) -> Tensor:
    if kind == "classes":
        return torch.randint(0, CLASSES, (N,), generator=torch.Generator().manual_seed(3))
    if kind == "labels":
        return (random(N, CLASSES, seed=3) > 0).double()
    return random(N, 3, seed=3) if kind == "numbers" else random(N, seed=3)


def batch(target: Tensor, weights: Tensor) -> Batch:
    return Batch({"target": target}, torch.arange(len(target)), weights, int(weights.sum()))


SMOOTH = 0.1
CASES: list[tuple[str, str, float, Any]] = [
    (
        "auto",
        "classes",
        SMOOTH,
        lambda o, t: functional.cross_entropy(o, t, label_smoothing=SMOOTH),
    ),
    ("auto", "labels", 0, functional.binary_cross_entropy_with_logits),
    (
        "bce",
        "classes",
        SMOOTH,
        lambda o, t: functional.binary_cross_entropy_with_logits(
            o, functional.one_hot(t, CLASSES).double() * (1 - SMOOTH) + SMOOTH / CLASSES
        ),
    ),
    ("auto", "numbers", 0, functional.mse_loss),
    ("l1", "numbers", 0, functional.l1_loss),
    ("huber", "number", 0, lambda o, t: functional.huber_loss(o[:, 0], t)),
    ("mse", "classes", 0, lambda o, t: functional.mse_loss(o[:, 0], t.double())),
]


@pytest.mark.parametrize(("name", "kind", "smoothing", "reference"), CASES)
def test_a_loss_is_torchs_over_the_samples_that_count_however_they_are_split(
    name: str, kind: str, smoothing: float, reference: Any
) -> None:
    target = targets(kind)
    aim = make_objective(
        TrainConfig(loss=name, label_smoothing=smoothing),  # type: ignore[arg-type]
        target=target[:1],
        num_classes=CLASSES if kind in ("classes", "labels") else 0,
    )
    output = random(N, aim.num_outputs, seed=1).requires_grad_()
    weights = torch.ones(N)
    weights[[2, 11, 22]] = 0
    spoiled = output.clone()
    with torch.no_grad():
        spoiled[[2, 11, 22]] = 1e30
    parts = [slice(0, 9), slice(9, 10), slice(10, N)]
    sums = [aim.loss(spoiled[p], batch(target[p], weights[p])) for p in parts]
    total = sums[0] + sums[1] + sums[2]
    real = weights > 0
    expected = reference(output[real], target[real])
    assert float(total.count) == N - 3
    assert (total.loss / total.count).item() == pytest.approx(expected.item(), rel=1e-12)
    assert set(total.metrics) == set(aim.metrics)
    (gradient,) = torch.autograd.grad(total.loss / total.count, output)
    (wanted,) = torch.autograd.grad(expected, output)
    assert torch.allclose(gradient, wanted, rtol=1e-12)


def test_what_is_asked_for_and_cannot_be() -> None:
    with pytest.raises(UserError, match=r"label_smoothing = 0\.1 has no meaning for the loss mse"):
        make_objective(TrainConfig(label_smoothing=0.1), target=targets("numbers"))
    with pytest.raises(UserError, match="needs classes"):
        make_objective(TrainConfig(loss="cross-entropy"), target=targets("number"))
    aim = make_objective(TrainConfig(), target=targets("number"))
    with pytest.raises(
        UserError, match=r"outputs of shape \(4,\) a sample, and the numbers have \(\)"
    ):
        aim.loss(random(N, 4), batch(targets("number"), torch.ones(N)))
    with pytest.raises(UserError, match="is not"):
        TrainConfig(loss="msee")  # type: ignore[arg-type]


def test_a_users_metric_stands_beside_a_named_loss() -> None:
    metrics = {"mine": lambda output, target: output[:, 0] * 0 + 2}
    aim = make_objective(TrainConfig(), num_classes=CLASSES, metrics=metrics)
    sums = aim.loss(random(N, CLASSES), batch(targets("classes"), torch.ones(N)))
    assert list(aim.metrics) == ["accuracy", "mine"]
    assert float(sums.metrics["mine"]) == 2 * N
