from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from paceline.data.order import (
    Cursor,
    evaluation_share,
    permutation,
    rank_chunks,
    step_chunks,
    steps_per_epoch,
)

SIZES = (1, 2, 7, 23, 64, 65, 97)
SPLITS = [(r, a, m) for r in (1, 2, 3, 5) for a in (1, 2) for m in (1, 2, 4)]


def test_the_order_is_a_pinned_function_of_seed_and_epoch() -> None:
    # Written out: a change of these numbers breaks the resuming of every run there is.
    assert permutation(0, 0, 10).tolist() == [3, 7, 8, 2, 6, 9, 5, 0, 1, 4]
    assert permutation(7, 3, 10).tolist() == [8, 7, 4, 9, 5, 3, 2, 0, 1, 6]


def test_every_epoch_and_seed_has_another_order_of_all_samples() -> None:
    orders = [permutation(seed, epoch, 1000) for seed in range(4) for epoch in range(4)]
    for one in orders:
        assert one.dtype == np.int64
        assert np.array_equal(np.sort(one), np.arange(1000))
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).mean() < 0.02


def test_an_order_looks_random() -> None:
    mean_position = np.mean([permutation(seed, 0, 100) for seed in range(400)], axis=0)
    assert abs(mean_position - 49.5).max() < 6  # 4 standard errors
    neighbours = np.mean([np.mean(np.diff(permutation(s, 0, 100)) == 1) for s in range(400)])
    assert neighbours == pytest.approx(0.01, abs=0.003)


def test_the_order_of_imagenet_takes_under_half_a_second() -> None:
    times = []
    for epoch in range(3):
        start = time.process_time()  # of this process alone, however busy the machine
        permutation(0, epoch, 1_281_167)
        times.append(time.process_time() - start)
    assert min(times) < 0.5


def test_a_cursor_goes_through_epochs() -> None:
    cursor = Cursor()
    seen = []
    for _ in range(5):
        seen.append((cursor.epoch, cursor.position))
        cursor = cursor.advance(4, 10)
    assert seen == [(0, 0), (0, 4), (0, 8), (1, 0), (1, 4)]


@pytest.mark.parametrize(("ranks", "accumulation", "micro"), SPLITS)
def test_every_position_once_an_epoch_on_any_ranks_from_any_start(
    ranks: int, accumulation: int, micro: int
) -> None:
    batch = ranks * accumulation * micro
    for n, start in itertools.product(SIZES, (0, 1, 5)):
        seen: list[int] = []
        steps = range(start, n, batch)
        for position in steps:
            chunks = step_chunks(position, n, batch, micro)
            shares = [rank_chunks(chunks, r, ranks, batch, micro) for r in range(ranks)]
            assert [c for share in shares for c in share] == chunks
            assert all(len(share) <= accumulation for share in shares)
            if n - position >= batch:
                assert all([len(c) for c in share] == [micro] * accumulation for share in shares)
            seen += [i for chunk in chunks for i in chunk]
        assert seen == list(range(start, n))
        if start == 0:
            assert len(steps) == steps_per_epoch(n, batch)


def test_chunks_know_nothing_of_ranks() -> None:
    # 12 samples a step in fours: the same groups on 1, 3 and (with accumulation) 1 rank.
    assert step_chunks(12, 31, 12, 4) == [range(12, 16), range(16, 20), range(20, 24)]
    assert step_chunks(24, 31, 12, 4) == [range(24, 28), range(28, 31)]


def test_a_remainder_of_one_joins_the_chunk_before() -> None:
    assert step_chunks(0, 9, 12, 4) == [range(0, 4), range(4, 9)]
    assert step_chunks(0, 10, 12, 4) == [range(0, 4), range(4, 8), range(8, 10)]
    assert step_chunks(8, 9, 8, 4) == [range(8, 9)]  # there is none before it
    assert step_chunks(0, 3, 4, 1) == [range(0, 1), range(1, 2), range(2, 3)]  # a chunk is one


def test_in_a_tail_the_last_ranks_may_have_nothing() -> None:
    chunks = step_chunks(0, 5, 12, 4)
    assert [rank_chunks(chunks, r, 3, 12, 4) for r in range(3)] == [[range(0, 5)], [], []]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 6, 7, 100])
def test_evaluation_shares_are_contiguous_even_and_whole(n: int, ranks: int) -> None:
    shares = [evaluation_share(n, rank, ranks) for rank in range(ranks)]
    assert [i for share in shares for i in share] == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
