"""Pipelines as users write them: texts, lists, tables, callables; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from paceline.config.load import load_config
from paceline.config.schema import DataConfig, RunConfig
from paceline.config.write import write_config
from paceline.data.augment import NoAugment, Pipeline, build_augment, check_augment
from paceline.data.augment.notation import as_setting
from paceline.data.bundle import bundle, load_data
from paceline.data.draws import Draws
from paceline.data.loader import Loader
from paceline.data.sources import ArraySource
from paceline.errors import UserError
from tests.data.conftest import MakeFolder

SHORT = "resized-crop, rand-augment(magnitude=9, interpolation=bilinear), erase(p=0.25)"
LIST = ["resized-crop", "rand-augment(magnitude=9, interpolation='bilinear')", "erase(p = 0.25)"]
TABLES = [
    "resized-crop",
    {"name": "rand-augment", "magnitude": 9, "interpolation": "bilinear"},
    {"name": "erase", "p": 0.25},
]


def test_texts_lists_and_tables_mean_the_same() -> None:
    assert build_augment(SHORT, 8) == build_augment(LIST, 8) == build_augment(TABLES, 8)
    assert build_augment("crop-flip", 8) == build_augment("shift, flip", 8)
    both = build_augment(["auto", "erase"], 8, auto="shift")
    assert both == build_augment("shift, erase", 8)
    assert isinstance(build_augment([], 8), NoAugment)


def test_a_file_and_the_command_line_and_back(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[data]\naugment = ["flip", { name = "color-jitter", brightness = 0.4 }]\n')
    config = load_config(file).config
    assert config.data.augment == ("flip", {"name": "color-jitter", "brightness": 0.4})
    file.write_text(write_config(config))
    assert load_config(file).config == config
    for text in ('["flip", "erase(p=0.5)"]', "flip, erase(p=0.5)", '"flip, erase(p=0.5)"'):
        written = load_config(sets=[f"data.augment={text}"]).config.data.augment
        assert build_augment(written, 8) == build_augment("flip, erase(p=0.5)", 8)


@pytest.mark.parametrize(
    ("written", "what", "hint"),
    [
        ("rand-agument", "'rand-agument' is no augmentation", "did you mean 'rand-augment'?"),
        ("flip, flop", "'flop' is no augmentation", "did you mean 'flip'?"),
        ("erase(prob=1)", "erase has no option 'prob'", "known: p, scale"),
        ("color-jitter(brigthness=1)", "no option 'brigthness'", "did you mean 'brightness'?"),
        ("erase(p=2)", "erase(p=2) is too large", "at most 1"),
        ("erase(p=often)", 'erase(p="often") is not a number', "write a number"),
        ("erase(scale=[0.5, 0.1])", "runs backwards", "the lower number first"),
        ("flip(direction=up)", "is not one of its choices", "horizontal, vertical"),
        ("rand-augment(9)", "is not name(option=value, …)", "rand-augment(magnitude=9)"),
        ("rand-augment(magnitude=40)", "is too large", "below num_magnitude_bins = 31"),
        ("flip(", '"flip(" is no step', 'write, for example, "flip"'),
        ("crop-flip(p=1)", "crop-flip takes no options", "it stands for shift, flip"),
        ("color-jitter", "color-jitter changes nothing", "brightness=0.4"),
        ("gaussian-blur(kernel_size=4)", "is even", "such as 5"),
        ([{"name": 3}], "the step { name = 3 } has no name", "write { name ="),
    ],
)
def test_a_mistake_is_told_in_a_sentence(written: Any, what: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        check_augment(written)
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_settings_refuse_what_is_no_pipeline() -> None:
    with pytest.raises(UserError, match="holds the step 3"):
        load_config(sets=["data.augment=[3]"])
    with pytest.raises(UserError, match="is not a list"):
        load_config(sets=["data.augment=[flip]"])
    assert RunConfig().data.augment == "auto"


def source(dtype: type = np.uint8, channels: int = 3, size: int = 8, n: int = 23) -> ArraySource:
    pixels = np.random.default_rng(0).integers(0, 256, (n, channels, size, size)).astype(dtype)
    return ArraySource({"input": pixels, "target": np.arange(n) % 3}, num_classes=3, name="mine")


def pixels_of(augment: Any, workers: int = 0, num_ranks: int = 1, **settings: Any) -> np.ndarray:
    """(samples, …) of the first epoch, ordered by sample."""
    data = bundle(DataConfig(augment="none", **settings), 0, source(), None, augment=augment)
    found: dict[int, np.ndarray] = {}
    for rank in range(num_ranks):
        loader = Loader(
            data.train,
            seed=0,
            global_batch=6,
            data_rank=rank,
            num_data_ranks=num_ranks,
            augment=data.augment,
            workers=workers,
        )
        for step in loader.epoch(0):
            for batch in step.micro_batches:
                rows = zip(batch.indices.tolist(), batch.data["input"].numpy(), strict=True)
                found.update({i: row.copy() for i, row in rows if i >= 0})
        loader.close()
    return np.stack([found[i] for i in sorted(found)])


def noisy(image: Tensor, strength: float = 20.0) -> Tensor:
    noise = torch.randn(image.shape) * strength + float(np.random.rand())
    return (image + noise).clamp(0, 255).to(torch.uint8)


def inverted(image: Image.Image) -> Image.Image:
    assert isinstance(image, Image.Image)
    return image.point(lambda value: 255 - value)


def test_a_function_s_draws_are_the_sample_s_on_any_ranks_and_workers() -> None:
    state = torch.get_rng_state()
    alone = pixels_of(["flip", noisy])
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(pixels_of(["flip", noisy], num_ranks=3), alone)
    assert np.array_equal(pixels_of(["flip", noisy], workers=2), alone)
    assert len({row.tobytes() for row in alone}) == 23


def test_a_function_by_name_with_options_and_of_pillow_images() -> None:
    here = __name__
    with_option = pixels_of([{"name": f"{here}:noisy", "strength": 0.0}])
    assert abs(with_option.astype(int) - source().load_many(np.arange(23))["input"]).max() <= 1
    assert np.array_equal(
        pixels_of(f"{here}:inverted"), 255 - source().load_many(np.arange(23))["input"]
    )
    assert as_setting([inverted, "flip"]) == [f"{here}:inverted", "flip"]


def fails_on_some(image: Tensor) -> Tensor:
    if int(image[0, 0, 0]) == int(source().load(11)["input"][0, 0, 0]):
        raise KeyError("a typo of the user")
    return image


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (fails_on_some, r"sample 11 of mine: .*fails_on_some failed: KeyError: .*test_registry"),
        (lambda image: image.float(), r"sample \d+ of mine: .* returned float32 of shape \(3, 8"),
        (lambda image: image[:1], r"returned uint8 of shape \(1, 8, 8\); uint8 of shape \(3, 8"),
        (lambda image: None, r"returned a NoneType"),
        (lambda image: image[:, 1:], r"the pipeline ends with 7 x 8 pixels, .* see 8 x 8"),
    ],
)
def test_a_function_that_misbehaves_is_named_with_its_sample(function: Any, what: str) -> None:
    with pytest.raises(UserError, match=what):
        pixels_of(function)


def test_a_pipeline_that_ends_in_another_size(make_folder: MakeFolder) -> None:
    config = DataConfig(
        source=f"imagefolder:{make_folder()}", image_size=16, augment="resize(shorter=20), flip"
    )
    with pytest.raises(UserError, match=r"ends with 20 x 2\d pixels.*16 x 16") as caught:
        load_data(config, 0)
    assert "resized-crop or crop" in caught.value.hint


@pytest.mark.parametrize("augment", ["resize(shorter=20), crop", "rotation, resized-crop, flip"])
def test_pipelines_on_whole_images(make_folder: MakeFolder, augment: str) -> None:
    config = DataConfig(source=f"imagefolder:{make_folder()}", image_size=16, augment=augment)
    data = load_data(config, 0)
    assert (data.image_size, isinstance(data.augment, Pipeline)) == (16, True)
    assert data.augment.before_stacking


@pytest.mark.parametrize("name", ["rand-augment", "color-jitter(hue=0.1)", "aug-mix"])
def test_float_images_are_refused_where_an_operation_needs_uint8(name: str) -> None:
    with pytest.raises(UserError, match="needs uint8 images, and these are float32") as caught:
        bundle(DataConfig(augment=name), 0, source(np.float32), None)
    assert "normalized on the device" in caught.value.hint
    with pytest.raises(UserError, match="needs 1 or 3 channels, and these images have 2"):
        bundle(DataConfig(augment=name), 0, source(channels=2), None)


def test_a_crop_larger_than_the_image_is_refused() -> None:
    with pytest.raises(UserError, match="at least 16 x 16 pixels, and finds one of 8 x 8"):
        build_augment("crop", 16)(np.zeros((1, 3, 8, 8), np.uint8), Draws(0, 0, np.array([0])))
    with pytest.raises(UserError, match="needs to know the size"):
        build_augment("crop", 0)
