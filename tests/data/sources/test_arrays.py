from __future__ import annotations

import hashlib
import importlib.util
import sys

import numpy as np
import pytest

from paceline.config.schema import DataConfig
from paceline.data.sources import ArraySource, Source, open_sources
from paceline.data.sources.base import stratified_split
from paceline.data.sources.digits import _read
from paceline.errors import UserError


def test_digits_have_a_fixed_stratified_split() -> None:
    opened = open_sources(DataConfig(), seed=0)
    train, test = opened.train, opened.evaluation
    assert test is not None
    assert (len(train), len(test)) == (1437, 360)
    assert np.bincount(test.labels).min() >= 34
    assert np.bincount(test.labels).max() <= 37
    images = np.concatenate([s.load_many(np.arange(len(s)))["input"] for s in (train, test)])
    assert images.shape == (1797, 1, 8, 8)
    assert images.dtype == np.uint8
    assert images.max() == 16
    again = open_sources(DataConfig(), seed=99)
    assert again.train.digest() == train.digest()
    assert np.array_equal(again.train.load(7)["input"], train.load(7)["input"])


def test_digits_are_normalized_by_their_own_statistics() -> None:
    train = open_sources(DataConfig(), seed=0).train
    values = train.load_many(np.arange(len(train)))["input"] * train.normalization.scale
    assert values.mean() == pytest.approx(train.normalization.mean[0], abs=1e-3)
    assert values.std() == pytest.approx(train.normalization.std[0], abs=1e-3)


def test_digits_at_another_size() -> None:
    image = open_sources(DataConfig(image_size=16), seed=0).train.load(0)["input"]
    assert image.shape == (1, 16, 16)
    assert image.max() > 8


def test_digits_are_read_whole_and_scikit_learn_is_not_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    images, labels = _read()
    assert "sklearn" not in sys.modules
    assert (
        hashlib.sha256(images.tobytes()).hexdigest()[:16] == "8f26b2bd9d135c25"
    )  # load_digits().images
    assert (
        hashlib.sha256(labels.tobytes()).hexdigest()[:16] == "a3c91c262eddcf7b"
    )  # load_digits().target


def test_digits_without_scikit_learn_name_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="scikit-learn ships, and it is not installed") as caught:
        open_sources(DataConfig(), seed=0)
    assert "pip install scikit-learn" in caught.value.hint


@pytest.mark.parametrize("size", [8, 33])
def test_synthetic_images_depend_on_their_index_alone(size: int) -> None:
    config = DataConfig(source="synthetic", image_size=size, num_samples=300, num_classes=7)
    first, second = (open_sources(config, seed=s).train for s in (0, 1))
    many = first.load_many(np.array([250, 3, 3]))
    assert many["input"].shape == (3, 3, size, size)
    assert many["input"].dtype == np.uint8
    assert np.array_equal(many["input"][1], second.load(3)["input"])
    assert np.array_equal(many["input"][1], many["input"][2])
    assert many["target"].tolist() == [first.load(i)["target"] for i in (250, 3, 3)]


def test_synthetic_images_can_be_learned_and_evaluation_has_others() -> None:
    opened = open_sources(DataConfig(source="synthetic", image_size=8, num_samples=800), seed=0)
    assert opened.evaluation is not None
    train = opened.train.load_many(np.arange(800))
    test = opened.evaluation.load_many(np.arange(100))
    known = {image.tobytes() for image in train["input"]}
    assert not any(image.tobytes() in known for image in test["input"])
    assert np.bincount(train["target"], minlength=10).min() > 50
    means = np.stack([train["input"][train["target"] == c].mean(0) for c in range(10)])
    distances = ((test["input"][:, None] - means[None]) ** 2).sum((2, 3, 4))
    assert (distances.argmin(1) == test["target"]).mean() == 1


def test_labels_out_of_range_name_the_sample() -> None:
    arrays = {"input": np.zeros((4, 2)), "target": np.array([0, 1, 5, 2])}
    with pytest.raises(
        UserError, match="sample 2 of mine has the label 5, and there are 3 classes"
    ):
        ArraySource(arrays, num_classes=3, name="mine")
    arrays["target"] = np.array([0, -1, 1, 2])
    with pytest.raises(UserError, match="sample 1 of mine has the label -1") as caught:
        ArraySource(arrays, num_classes=3, name="mine")
    assert "0 to 2" in caught.value.hint


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(UserError, match="differ in length"):
        ArraySource({"input": np.zeros(3), "target": np.zeros(4)}, num_classes=0, name="mine")


@pytest.mark.parametrize("counts", [[5, 5], [1, 1, 1], [100, 3], [1, 1], [50]])
def test_a_split_holds_out_a_fifth_of_each_class(counts: list[int]) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    kept, out = stratified_split(labels, 0.2)
    assert sorted([*kept, *out]) == list(range(sum(counts)))
    assert len(out) == min(max(1, -(-sum(counts) // 5)), sum(counts) - 1)
    assert abs(np.bincount(labels[out], minlength=len(counts)) - 0.2 * np.array(counts)).max() < 1


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("digit", "did you mean 'digits'?"),
        ("sinthetic", "did you mean 'synthetic'?"),
        ("image_folder:/data", "did you mean 'imagefolder'?"),
        ("zzz", "known: digits, synthetic, imagefolder:PATH, csv:PATH, tokens:PATH"),
        ("", "known: digits"),
        ("a b:c", "known: digits"),
        ("digits:8", "write 'digits'"),
    ],
)
def test_an_unknown_source_is_refused_with_the_nearest_name(source: str, hint: str) -> None:
    for config in (DataConfig(source=source), DataConfig(eval_source=source or "?")):
        with pytest.raises(UserError) as caught:
            open_sources(config, seed=0)
        assert hint.partition(" or")[0] in caught.value.hint


def test_the_evaluation_source_can_be_another() -> None:
    opened = open_sources(DataConfig(source="synthetic", eval_source="digits"), seed=0)
    assert opened.evaluation is not None
    assert isinstance(opened.train, Source)
    assert len(opened.evaluation) == 360
