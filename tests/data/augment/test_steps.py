"""Every step by itself: drawn for a sample alone, and with the pixels that torchvision's own operation gives."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandomResizedCrop, v2
from torchvision.transforms.v2 import functional

from paceline.data.augment import PRESETS, STEPS, build_augment
from paceline.data.augment.base import Context, make_step
from paceline.data.augment.geometry import random_crop
from paceline.data.augment.policies import _MIX, _RAND, _WIDE, OPERATIONS, magnitude
from paceline.data.draws import Draws
from paceline.data.generators import generators_kept

WRITTEN = {
    **{name: name for name in (*PRESETS, *STEPS) if name != "resize"},
    "resize": "resize(shorter=12)",
    "color-jitter": "color-jitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)",
    "crop": "crop(padding=2)",
    "several": "resized-crop(scale=[0.3, 1]), flip, rand-augment(magnitude=15), erase(p=0.9)",
}


def images(n: int, size: int, channels: int = 1, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 200, (n, channels, size, size)).astype(dtype)


def photo(height: int = 20, width: int = 26) -> Tensor:
    return torch.from_numpy(
        np.random.default_rng(1).integers(0, 256, (3, height, width), dtype=np.uint8)
    )


@pytest.mark.parametrize("name", WRITTEN)
def test_an_image_is_augmented_alike_alone_and_in_a_batch_and_is_not_written_into(
    name: str,
) -> None:
    augment, indices = build_augment(WRITTEN[name], 12), np.array([4, 9, 2, 77])
    batch = images(4, 12, 3)
    before = batch.copy()
    state = torch.get_rng_state()
    together = augment(batch, Draws(0, 3, indices))
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(batch, before)
    assert together.dtype == np.uint8
    assert together.shape == batch.shape
    for row in range(4):
        alone = augment(batch[row : row + 1], Draws(0, 3, indices[row : row + 1]))
        assert np.array_equal(alone[0], together[row])


@pytest.mark.parametrize("name", [n for n in WRITTEN if n not in ("none", "resize")])
def test_epochs_and_samples_differ(name: str) -> None:
    augment = build_augment(WRITTEN[name], 16)
    same = np.repeat(images(1, 16, 3), 32, axis=0)
    first, second = (augment(same, Draws(0, epoch, np.arange(32))) for epoch in (0, 1))
    assert len({image.tobytes() for image in first}) > (1 if name in ("flip", "grayscale") else 5)
    assert not np.array_equal(first, second)


def test_steps_of_one_name_draw_apart() -> None:
    augment = build_augment("flip, flip(direction=vertical)", 8)
    same = np.repeat(images(1, 8), 64, axis=0)
    assert len({image.tobytes() for image in augment(same, Draws(0, 0, np.arange(64)))}) == 4


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "name", ["shift", "crop-flip", "rotation", "erase(p=1)", "gaussian-blur", "crop(padding=1)"]
)
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


def one(name: str, image: Tensor, numbers: list[float], **options: Any) -> Tensor:
    context = Context(size=16, mean=(123.7, 116.3, 103.5))
    return make_step(name, STEPS[name], options, context).one(image, numbers)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_a_resized_crop_has_torchvision_s_pixels(mode: str) -> None:
    image, numbers = photo(), [0.3, 0.7, 0.2, 0.9] * 10
    ours = one("resized-crop", image, numbers, interpolation=mode)
    box = random_crop(20, 26, np.reshape(numbers, (10, 4)))
    theirs = functional.resized_crop(image, *box, [16, 16], InterpolationMode(mode), antialias=True)
    assert torch.equal(ours, theirs)


def test_flips_and_rotations_have_torchvision_s_pixels() -> None:
    image = photo()
    for direction in ("horizontal", "vertical"):
        flip = make_step("flip", STEPS["flip"], {"direction": direction}, Context())
        found = torch.from_numpy(flip(image.numpy()[None], np.array([[0.1]]))[0])
        assert torch.equal(found, getattr(functional, f"{direction}_flip")(image))
    turned = one("rotation", image, [0.25], degrees=[-20, 20], interpolation="bilinear", fill=7)
    assert torch.equal(
        turned, functional.rotate(image, -10.0, InterpolationMode.BILINEAR, fill=7.0)
    )


def test_resize_and_crop_have_torchvision_s_pixels() -> None:
    image = photo(31, 47)
    assert torch.equal(one("resize", image, [], shorter=18), v2.Resize(18, antialias=True)(image))
    window = one("crop", image, [0.5, 0.99], padding=3, padding_mode="reflect")
    padded = functional.pad(image, [3, 3, 3, 3], padding_mode="reflect")
    assert torch.equal(window, functional.crop(padded, 11, 37, 16, 16))


@pytest.mark.parametrize("order", [0.0, 0.45, 0.99])
def test_color_jitter_has_torchvision_s_pixels(order: float) -> None:
    image = photo()
    options = {"brightness": 0.4, "contrast": [0.5, 1.2], "saturation": 0.3, "hue": 0.1}
    ours = one("color-jitter", image, [0.25, 0.5, 0.75, 0.1, order, 0.0], **options)
    params = {
        "fn_idx": torch.tensor(list(itertools.permutations(range(4)))[int(order * 24)]),
        "brightness_factor": 0.8,
        "contrast_factor": 0.85,
        "saturation_factor": 1.15,
        "hue_factor": -0.08,
    }
    assert torch.equal(ours, v2.ColorJitter(0.4, 0.4, 0.3, 0.1).transform(image, params))
    assert torch.equal(one("color-jitter", image, [0.5] * 5 + [0.9], brightness=1, p=0.5), image)


def test_grayscale_blur_and_erasing_have_torchvision_s_pixels() -> None:
    image = photo()
    assert torch.equal(one("grayscale", image, [0.0]), v2.Grayscale(3)(image))
    blurred = one("gaussian-blur", image, [0.0, 0.5], sigma=[0.5, 1.5], kernel_size=5)
    assert torch.equal(blurred, functional.gaussian_blur(image, [5, 5], [1.0, 1.0]))
    erase = make_step("erase", STEPS["erase"], {"value": 9}, Context())
    numbers = [0.0, 0.0, *[0.9, 0.4, 0.2, 0.7] * 10]
    box = erase._box(20, 26, numbers[2:])  # type: ignore[attr-defined]
    params = dict(zip("ijhw", box, strict=True)) | {"v": torch.tensor([[[9]]], dtype=torch.uint8)}
    erased = erase.one(image, numbers)
    assert torch.equal(erased, v2.RandomErasing().transform(image, params))
    assert 0.2 < box[2] * box[3] / (20 * 26) < 0.4
    meant = one("erase", image, numbers)
    top, left = box[:2]
    assert meant[:, top, left].tolist() == [124, 116, 104]


@pytest.mark.parametrize(
    ("theirs", "strongest", "bins"),
    [(v2.RandAugment, _RAND, 31), (v2.TrivialAugmentWide, _WIDE, 31), (v2.AugMix, _MIX, 10)],
)
def test_operations_of_policies_have_torchvision_s_pixels(
    theirs: Any, strongest: dict[str, Any], bins: int
) -> None:
    """Each of its operations at every magnitude, in both directions."""
    image, policy = photo(), theirs()
    space = policy._AUGMENTATION_SPACE
    plain = {name.replace("-", ""): name for name in OPERATIONS}
    assert {name.lower() for name in space} | {"identity"} == set(plain)
    for name, (magnitudes_of, signed) in space.items():
        ours = plain[name.lower()]
        magnitudes = magnitudes_of(bins, 20, 26)
        for place in range(0, bins, 3):
            strength = magnitude(ours, strongest, place / (bins - 1), 20, 26)
            wanted = 0.0 if magnitudes is None else float(magnitudes[place])
            assert strength == pytest.approx(wanted, rel=1e-5, abs=1e-7)
            for sign in (1, -1) if signed else (1,):
                nearest = InterpolationMode.NEAREST
                expected = policy._apply_image_or_video_transform(
                    image, name, sign * wanted, interpolation=nearest, fill={}
                )
                assert torch.equal(OPERATIONS[ours](image, sign * wanted, nearest), expected), name


def test_aug_mix_keeps_flat_images_and_averages_others() -> None:
    flat = torch.full((3, 8, 8), 128, dtype=torch.uint8)
    mixed = one("aug-mix", flat, [0.4], all_ops=False, severity=1)
    assert abs(mixed[:, 4, 4].int() - 128).max() <= 64
    assert not torch.equal(one("aug-mix", photo(), [0.4]), one("aug-mix", photo(), [0.41]))


def test_the_digits_batch_takes_well_under_a_millisecond() -> None:
    augment, batch = build_augment("shift", 8), images(64, 8)
    times = []
    for epoch in range(200):
        start = time.perf_counter()
        augment(batch, Draws(0, epoch, np.arange(64)))
        times.append(time.perf_counter() - start)
    assert np.median(times) < 1e-3
