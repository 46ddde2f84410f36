"""Draws with replacement are a pure function of (seed, epoch, position), whoever asks and from where on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.config.schema import DataConfig
from paceline.data.augment import build_augment
from paceline.data.bundle import bundle
from paceline.data.loader import Loader
from paceline.data.order import permutation
from paceline.data.sampling import Sampling, make_sampling, occurrences
from paceline.data.sources import ArraySource, Source
from paceline.data.sources.functions import from_dataset
from paceline.errors import UserError
from tests.data.datasets import Drawing

NUM = 40


def lopsided() -> ArraySource:
    """36 samples of class 0, four of class 1; images that tell samples and pixels apart."""
    images = np.random.default_rng(0).integers(1, 256, (NUM, 1, 8, 8), dtype=np.uint8)
    labels = (np.arange(NUM) >= 36).astype(np.int64)
    return ArraySource({"input": images, "target": labels}, num_classes=2, name="lopsided")


def sampling(source: Source, **settings: Any) -> Sampling:
    return make_sampling(DataConfig(**settings), source)


def test_shuffling_is_what_it_was_and_a_part_of_an_epoch_is_its_beginning() -> None:
    whole, draws = sampling(lopsided()).epoch(3, 5)
    assert np.array_equal(whole, permutation(3, 5, NUM)) and draws is whole
    part, _ = sampling(lopsided(), epoch_samples=7).epoch(3, 5)
    assert np.array_equal(part, whole[:7])


def test_balanced_draws_every_class_equally_often() -> None:
    chosen = sampling(lopsided(), sampling="balanced", epoch_samples=20_000)
    indices, keys = chosen.epoch(0, 0)
    counts = np.bincount(indices, minlength=NUM)
    assert counts[36:].sum() / 20_000 == pytest.approx(0.5, abs=0.015)  # four standard deviations
    assert counts[:36].std() < 4 * counts[:36].mean() ** 0.5
    assert len(np.unique(keys)) == 20_000  # no two draws are alike, even of one sample
    assert np.array_equal(keys % NUM, indices)
    assert not np.array_equal(chosen.epoch(0, 1)[0], indices)
    assert not np.array_equal(chosen.epoch(1, 0)[0], indices)


def test_weights_of_a_file_and_of_the_source(tmp_path: Path) -> None:
    weights = np.arange(NUM) * (np.arange(NUM) % 2)
    np.save(tmp_path / "w.npy", weights)
    (tmp_path / "w.txt").write_text("\n".join(map(str, weights)))
    source = lopsided()
    source.sample_weights = weights.astype(np.float64)
    found = [
        sampling(source, sampling="weighted", epoch_samples=30_000, sample_weights=file).epoch(
            0, 0
        )[0]
        for file in (str(tmp_path / "w.npy"), str(tmp_path / "w.txt"), "")
    ]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    counts = np.bincount(found[0], minlength=NUM)
    expected = 30_000 * weights / weights.sum()
    assert (np.abs(counts - expected) <= 5 * expected**0.5).all()  # and never one of weight 0


def test_the_last_sample_may_have_no_weight() -> None:
    indices, _ = Sampling(3, 1000, np.array([1.0, 1.0, 0.0])).epoch(0, 0)
    assert set(indices.tolist()) == {0, 1}


def test_occurrences() -> None:
    assert occurrences(np.array([5, 2, 5, 5, 2, 9])).tolist() == [0, 0, 1, 2, 1, 0]


def seen(num_ranks: int, start: int = 0, *, workers: int = 0, source: Any = None) -> list[Any]:
    """(position, index, pixels) of every draw of an epoch, in order, over all ranks."""
    source = source or lopsided()
    loaders = [
        Loader(
            source,
            seed=1,
            global_batch=12,
            micro_batch=2,
            data_rank=rank,
            num_data_ranks=num_ranks,
            augment=build_augment("crop-flip", 8) if isinstance(source, ArraySource) else None,
            workers=workers,
            sampling=Sampling(len(source), 41, 1.0 / np.arange(1, len(source) + 1)),
        )
        for rank in range(num_ranks)
    ]
    found = []
    for steps in zip(*(loader.epoch(2, start) for loader in loaders), strict=True):
        rows = [
            (index, batch.data["input"][i].numpy().tobytes())
            for step in steps
            for batch in step.micro_batches
            for i, index in enumerate(batch.indices.tolist())
            if index >= 0
        ]
        found += [(steps[0].position + i, *row) for i, row in enumerate(rows)]
    return found


def test_one_two_and_three_ranks_and_a_resume_see_the_same_samples_in_the_same_way() -> None:
    one = seen(1)
    assert len(one) == 41
    assert seen(2) == one and seen(3) == one and seen(3, workers=1) == one
    assert seen(2, start=24) == one[24:]


def test_a_sample_that_is_drawn_twice_is_seen_in_two_ways() -> None:
    one = seen(1)
    often = Counter(index for _, index, _ in one).most_common(1)[0]
    assert often[1] >= 5
    views = {pixels for _, index, pixels in one if index == often[0]}
    assert len(views) >= often[1] - 1  # of 18 views that crop and flip can give
    # What a user's transform draws from the global generators differs too.
    drawn = seen(1, source=from_dataset(Drawing()))
    assert len({pixels for _, _, pixels in drawn}) == len(drawn)
    assert seen(2, source=from_dataset(Drawing())) == drawn


def test_another_sampling_is_another_experiment() -> None:
    prints = {
        bundle(DataConfig(**settings), 0, lopsided(), None).fingerprint
        for settings in ({}, {"sampling": "balanced"}, {"epoch_samples": 12})
    }
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"epoch_samples": 41}, "has 40 samples, each at most once an epoch"),
        ({"sampling": "weighted"}, "has no weights"),
        ({"sample_weights": "w.npy"}, "has no use for it"),
        ({"sampling": "weighted", "sample_weights": "no.npy"}, "cannot read no.npy"),
    ],
)
def test_what_cannot_be_sampled(settings: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError, match="hint: ") as caught:
        sampling(lopsided(), **settings)
    assert part in caught.value.what


@pytest.mark.parametrize(
    ("weights", "part"),
    [
        ([1.0] * 3, "holds 3 weights, and the training set has 40 samples"),
        ([1.0] * 39 + [-1.0], "the weight of sample 39 in lopsided is -1"),
        ([float("nan")] + [1.0] * 39, "the weight of sample 0 in lopsided is nan"),
        ([0.0] * 40, "every weight in lopsided is 0"),
    ],
)
def test_wrong_weights(weights: list[float], part: str) -> None:
    source = lopsided()
    source.sample_weights = np.array(weights)
    with pytest.raises(UserError, match="hint: ") as caught:
        sampling(source, sampling="weighted")
    assert part in caught.value.what


def test_balanced_needs_classes() -> None:
    source = lopsided()
    source.labels = None
    with pytest.raises(UserError, match="needs the class of every sample"):
        sampling(source, sampling="balanced")
