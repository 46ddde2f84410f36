from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from paceline.data.draws import Draws, key
from paceline.data.generators import generators_kept, seed_generators


def test_draws_are_pinned() -> None:
    # splitmix64 itself: the first output of a generator with state 0 is 0xE220A8397B1DCDAF.
    from paceline.data.draws import GOLDEN, mix

    assert int(mix(np.array([GOLDEN], np.uint64))[0]) == 0xE220A8397B1DCDAF
    assert Draws(1, 2, np.array([3, 4])).integers(5, 1000, 3).tolist() == [
        [105, 868, 710],
        [608, 130, 606],
    ]


def test_a_sample_draws_the_same_in_any_batch() -> None:
    indices = np.array([5, 900, 3, 77])
    together = Draws(3, 1, indices).uniform(4, 6)
    for row, index in enumerate(indices):
        assert np.array_equal(Draws(3, 1, np.array([index])).uniform(4, 6)[0], together[row])
    assert np.array_equal(Draws(3, 1, indices[::-1]).uniform(4, 6), together[::-1])


def test_seed_epoch_index_and_stream_each_change_the_draws() -> None:
    base = dict(seed=0, epoch=0, index=0, stream=0)
    seen = set()
    for change in (base, *({**base, name: 1} for name in base)):
        draws = Draws(change["seed"], change["epoch"], np.array([change["index"]]))
        seen.add(float(draws.uniform(change["stream"], 1)[0, 0]))
    assert len(seen) == 5


def test_uniform_is_uniform_and_uncorrelated() -> None:
    values = Draws(0, 0, np.arange(20000)).uniform(1, 2)
    assert values.min() >= 0
    assert values.max() < 1
    assert values.mean() == pytest.approx(0.5, abs=0.01)
    assert values.std() == pytest.approx(12**-0.5, abs=0.01)
    assert abs(np.corrcoef(values.T)[0, 1]) < 0.03  # of two draws of a sample
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 0.03  # of neighbouring samples


def test_integers_are_even_over_their_range() -> None:
    values = Draws(0, 0, np.arange(30000)).integers(1, 3, 1)
    assert np.bincount(values[:, 0]).tolist() == pytest.approx([10000] * 3, rel=0.05)


def test_a_key_depends_on_the_order_of_its_parts() -> None:
    assert len({key(1, 2), key(2, 1), key(1, 2, 0), key(0, 1, 2), key(-1), key(2**63)}) == 6


def test_draws_leave_the_global_generators_alone() -> None:
    with generators_kept():
        seed_generators(0)
        expected = torch.rand(1), np.random.rand(), random.random()
        seed_generators(0)
        Draws(0, 0, np.arange(10)).uniform(0, 3)
        assert (torch.rand(1), np.random.rand(), random.random()) == expected


def test_the_three_generators_get_different_seeds_and_come_back() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    with generators_kept():
        seed_generators(1, 2)
        assert torch.initial_seed() & 0xFFFFFFFF != int(np.random.get_state()[1][0])  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]
    assert random.getstate() == before[2]
