"""What a model draws: keyed by (seed, step, micro-batch), so that ranks differ and a repetition does not."""

from __future__ import annotations

import itertools

import torch

from paceline.parallel.draws import seed_micro_batch

CPU = [torch.device("cpu")]


def drawn(seed: int, step: int, index: int) -> torch.Tensor:
    seed_micro_batch(seed, step, index, CPU)
    return torch.rand(8)


def test_every_key_draws_other_numbers_and_the_same_key_the_same() -> None:
    keys = list(itertools.product((0, 1), (0, 1, 2), (0, 1, 2)))
    found = [drawn(*key) for key in keys]
    for a, b in itertools.combinations(found, 2):
        assert not torch.equal(a, b)
    assert all(torch.equal(drawn(*key), was) for key, was in zip(keys, found, strict=True))


def test_pythons_and_numpys_generators_are_left_alone() -> None:
    import random

    import numpy as np

    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    drawn(0, 0, 0)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]
