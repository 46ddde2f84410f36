"""The averaged weights: their formula, and that they are gone from the model afterwards."""

from __future__ import annotations

import torch

from paceline.optim.averaging import Average


def test_the_average_follows_its_formula() -> None:
    weight = torch.zeros(3)
    average = Average([("w", weight)], decay=0.5)
    expected = torch.zeros(3)
    for step in range(20):
        weight += 1
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight
        average.update(step)
    assert torch.allclose(average.tensors()["average/w"], expected)


def test_the_model_has_the_averaged_weights_only_inside() -> None:
    weight = torch.ones(3)
    average = Average([("w", weight)], decay=0.9)
    weight.fill_(5.0)
    with average.in_place():
        assert torch.equal(weight, torch.ones(3))
    assert torch.equal(weight, torch.full((3,), 5.0))


def test_a_checkpoint_without_averages_starts_one_at_its_weights() -> None:
    weight = torch.ones(3)
    average = Average([("w", weight)], decay=0.9)
    weight.fill_(7.0)
    average.load_tensors({"model/w": weight})
    assert torch.equal(average.tensors()["average/w"], weight)
