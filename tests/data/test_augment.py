from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torchvision.transforms import RandomResizedCrop

from paceline.data.augment import AUGMENTS, build_augment, random_crop
from paceline.data.draws import Draws
from paceline.data.generators import generators_kept


def images(n: int, size: int, channels: int = 1, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 200, (n, channels, size, size)).astype(dtype)


@pytest.mark.parametrize("name", AUGMENTS)
def test_an_image_is_augmented_alike_alone_and_in_a_batch(name: str) -> None:
    augment, indices = build_augment(name, 12), np.array([4, 9, 2, 77])
    batch = images(4, 12, 3)
    together = augment(batch, Draws(0, 3, indices))
    assert together.dtype == np.uint8
    assert together.shape == batch.shape
    for row in range(4):
        alone = augment(batch[row : row + 1], Draws(0, 3, indices[row : row + 1]))
        assert np.array_equal(alone[0], together[row])


@pytest.mark.parametrize("name", [n for n in AUGMENTS if n != "none"])
def test_epochs_and_samples_differ(name: str) -> None:
    augment = build_augment(name, 16)
    same = np.repeat(images(1, 16, 3), 64, axis=0)
    first, second = (augment(same, Draws(0, epoch, np.arange(64))) for epoch in (0, 1))
    assert len({image.tobytes() for image in first}) > 5
    assert not np.array_equal(first, second)


def test_a_shift_moves_by_at_most_a_pixel_and_bares_zeros() -> None:
    image = images(1, 8)[0, 0]
    shifted = build_augment("shift", 8)(
        np.repeat(image[None, None], 500, axis=0), Draws(0, 0, np.arange(500))
    )
    padded = np.pad(image, 1)
    possible = {padded[y : y + 8, x : x + 8].tobytes() for y in range(3) for x in range(3)}
    assert {one[0].tobytes() for one in shifted} == possible


def test_crop_flip_mirrors_half() -> None:
    image = np.broadcast_to(np.arange(1, 33, dtype=np.uint8), (1, 1, 32, 32))
    flipped = build_augment("crop-flip", 32)(
        np.repeat(image, 1000, axis=0), Draws(0, 0, np.arange(1000))
    )
    middle = flipped[:, 0, 16, 12:20].astype(int)
    assert (np.diff(middle, axis=1) < 0).all(axis=1).mean() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
@pytest.mark.parametrize("name", ["shift", "crop-flip"])
def test_other_dtypes_stay(name: str, dtype: type) -> None:
    batch = images(3, 8, 2, dtype)
    assert build_augment(name, 8)(batch, Draws(0, 0, np.arange(3))).dtype == dtype


def test_crops_have_the_area_and_aspect_of_the_usual_recipe() -> None:
    numbers = Draws(0, 0, np.arange(3000)).uniform(1, 40).reshape(-1, 10, 4)
    crops = np.array([random_crop(375, 500, row) for row in numbers])
    top, left, height, width = crops.T
    assert top.min() >= 0
    assert left.min() >= 0
    assert (top + height).max() <= 375
    assert (left + width).max() <= 500
    image = torch.empty(375, 500)
    with generators_kept():
        torch.manual_seed(0)
        theirs = np.array(
            [RandomResizedCrop.get_params(image, [0.08, 1], [3 / 4, 4 / 3]) for _ in range(3000)]
        )
    quantiles = [0.02, 0.25, 0.5, 0.75, 0.98]
    for ours, reference in zip((top, left, height, width), theirs.T, strict=True):
        difference = np.quantile(ours, quantiles) - np.quantile(reference, quantiles)
        assert abs(difference).max() < 15  # of 375 x 500 pixels


def test_a_crop_of_an_image_that_is_far_too_long_is_central() -> None:
    assert random_crop(10, 1000, np.full((10, 4), 0.999)) == (0, 493, 10, 13)


def test_the_digits_batch_takes_well_under_a_millisecond() -> None:
    augment, batch = build_augment("shift", 8), images(64, 8)
    times = []
    for epoch in range(200):
        start = time.perf_counter()
        augment(batch, Draws(0, epoch, np.arange(64)))
        times.append(time.perf_counter() - start)
    assert np.median(times) < 1e-3
