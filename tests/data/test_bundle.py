from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from paceline.config.schema import DataConfig
from paceline.data.augment import NoAugment, build_augment
from paceline.data.augment.base import Context
from paceline.data.batch import Batch
from paceline.data.bundle import bundle, load_data
from paceline.data.sources import ArraySource, Normalization, from_dataset
from paceline.errors import UserError
from tests.data.conftest import MakeFolder, truncate


def batch_of(**data: torch.Tensor) -> Batch:
    n = len(next(iter(data.values())))
    return Batch(data, torch.arange(n), torch.ones(n), n)


def images(n: int, side: int, channels: int = 1, num_classes: int = 2) -> ArraySource:
    arrays = {
        "input": np.zeros((n, channels, side, side), np.uint8),
        "target": np.arange(n) % num_classes,
    }
    return ArraySource(arrays, num_classes=num_classes, name="mine")


def test_the_digits_as_a_run_sees_them() -> None:
    data = load_data(DataConfig(), 0)
    assert (data.channels, data.image_size, data.num_classes) == (1, 8, 10)
    assert data.augment == build_augment("shift", Context(size=8, mean=(0.305 * 16,)))
    assert isinstance(load_data(DataConfig(augment="none"), 0).augment, NoAugment)
    assert data.class_names == tuple("0123456789")


def test_an_image_folder_as_a_run_sees_it(make_folder: MakeFolder) -> None:
    data = load_data(DataConfig(source=f"imagefolder:{make_folder()}", image_size=24), 0)
    assert (data.channels, data.image_size, data.num_classes) == (3, 24, 2)
    imagenet = tuple(mean / (1 / 255) for mean in (0.485, 0.456, 0.406))
    assert data.augment == build_augment("resized-crop-flip", Context(size=24, mean=imagenet))
    assert "held out" in data.notes[0]


def test_a_first_image_that_is_bad_may_be_skipped(make_folder: MakeFolder) -> None:
    root = make_folder("set/train")
    make_folder("set/val", each=1)
    truncate(root / "cat" / "0.jpg")
    config: dict[str, Any] = {"source": f"imagefolder:{root.parent}", "image_size": 8}
    with pytest.raises(UserError, match=r"cat/0\.jpg"):
        load_data(DataConfig(**config), 0)
    assert load_data(DataConfig(**config, on_bad_sample="skip"), 0).channels == 3


def test_the_fingerprint_changes_with_the_data_only() -> None:
    fingerprint = load_data(DataConfig(source="synthetic", num_samples=50), 0).fingerprint
    same = DataConfig(source="synthetic", num_samples=50, augment="shift", workers=3)
    assert load_data(same, 9).fingerprint == fingerprint
    assert load_data(DataConfig(source="synthetic", num_samples=51), 0).fingerprint != fingerprint
    labels = images(10, 4), images(10, 4)
    labels[1].labels[3] = 0  # type: ignore[index]
    first, second = (bundle(DataConfig(), 0, source, None).fingerprint for source in labels)
    assert first != second


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_are_normalized_in_the_dtype_of_the_run(dtype: torch.dtype) -> None:
    data = load_data(DataConfig(), 0, dtype=dtype)
    pixels = torch.arange(17, dtype=torch.uint8).reshape(17, 1, 1, 1)
    prepared = data.prepare(batch_of(input=pixels, target=torch.zeros(17, dtype=torch.int64)))
    expected = (torch.arange(17).double() / 16 - 0.305) / 0.376
    assert prepared.data["input"].dtype == dtype
    error = (prepared.data["input"].flatten().double() - expected).abs().max()
    assert error < 10 * torch.finfo(dtype).eps
    assert prepared.data["target"].dtype == torch.int64


def test_normalization_is_by_channel() -> None:
    source = images(2, 1, channels=3)
    source.normalization = Normalization(scale=1.0, mean=(1, 2, 3), std=(1, 2, 4))
    prepare = bundle(DataConfig(), 0, source, None).prepare
    prepared = prepare(batch_of(input=torch.full((1, 3, 1, 1), 7, dtype=torch.uint8)))
    assert prepared.data["input"].flatten().tolist() == [6, 2.5, 1]


def test_what_is_no_uint8_image_is_left_alone() -> None:
    prepare = load_data(DataConfig(), 0).prepare
    tokens = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
    assert torch.equal(prepare(batch_of(input=tokens)).data["input"], tokens)
    floats, mask = torch.randn(2, 1, 4, 4), torch.ones(2, 1, 4, 4, dtype=torch.uint8)
    prepared = prepare(batch_of(input=floats, mask=mask)).data
    assert torch.equal(prepared["input"], floats)
    assert torch.equal(prepared["mask"], mask)
    batch = Batch(torch.ones(2, 3), torch.arange(2), torch.ones(2), 2)
    assert torch.equal(prepare(batch).data, batch.data)


def test_in_float64_everything_that_floats_is_float64() -> None:
    prepare = load_data(DataConfig(), 0, dtype=torch.float64).prepare
    data = prepare(batch_of(input=torch.ones(2, 3), target=torch.ones(2), number=torch.arange(2)))
    dtypes = [t.dtype for t in data.data.values()]
    assert dtypes == [torch.float64, torch.float64, torch.int64]


def test_float64_inputs_become_the_run_s_dtype() -> None:
    prepare = load_data(DataConfig(), 0).prepare
    assert prepare(batch_of(input=torch.ones(2, 3).double())).data["input"].dtype == torch.float32


def test_data_without_images_or_classes() -> None:
    source = from_dataset(TensorDataset(torch.zeros(5, 7), torch.zeros(5)))
    data = bundle(DataConfig(), 0, source, None)
    assert (data.channels, data.image_size, data.num_classes) == (0, 0, 0)
    assert data.evaluation is None


@pytest.mark.parametrize(
    ("train", "evaluation", "settings", "what"),
    [
        (images(0, 4), None, {}, "the training set .mine. has no samples"),
        (images(4, 4), images(0, 4), {}, "the evaluation set .mine. has no samples"),
        (images(4, 4), images(4, 4, num_classes=3), {}, "has 2 classes, and the evaluation set"),
        (images(4, 4), images(4, 5), {}, r"\(1, 4, 4\) in training and \(1, 5, 5\) in evaluation"),
        (
            images(4, 4),
            None,
            {"image_size": 8},
            r"data.image_size = 8, and mine gives .*\(1, 4, 4\)",
        ),
    ],
)
def test_data_that_does_not_fit_is_refused(
    train: ArraySource, evaluation: ArraySource | None, settings: dict[str, Any], what: str
) -> None:
    with pytest.raises(UserError, match=what) as caught:
        bundle(DataConfig(**settings), 0, train, evaluation)
    assert caught.value.hint


def test_a_normalization_of_other_channels_is_refused() -> None:
    source = images(4, 4)
    source.normalization = Normalization(mean=(0, 0, 0), std=(1, 1, 1))
    with pytest.raises(UserError, match="normalized over 3 channels, and has 1"):
        bundle(DataConfig(), 0, source, None)
