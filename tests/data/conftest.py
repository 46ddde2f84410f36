"""Image folders made for a test, and a check that no loader process outlives its test."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

MakeFolder = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_loader_process_left() -> Iterator[None]:
    before = set(multiprocessing.active_children())
    yield
    if set(multiprocessing.active_children()) - before:
        gc.collect()
    deadline = time.monotonic() + 10
    while left := set(multiprocessing.active_children()) - before:
        assert time.monotonic() < deadline, f"loader processes left behind: {left}"
        time.sleep(0.05)


def photo(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    """Smooth colours with some noise, so that JPEG has something to do."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noise = generator.integers(-8, 9, (height, width, 3))
    return Image.fromarray((np.asarray(smooth).astype(int) + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    def make(
        name: str = "photos", classes: tuple[str, ...] = ("cat", "dog"), each: int = 5
    ) -> Path:
        for number, label in enumerate(classes):
            folder = tmp_path / name / label
            folder.mkdir(parents=True)
            for i in range(each):
                photo(100 * number + i, 40 + i, 30 + 2 * i).save(folder / f"{i}.jpg", quality=92)
        return tmp_path / name

    return make


def truncate(file: Path) -> None:
    """Cuts a file off in its middle, as a broken download does."""
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
