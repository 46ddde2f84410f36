"""What is told of a data set: counted exactly, with its planted faults by name; and the picture of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import paceline
from paceline.config.load import load_config
from paceline.data.assemble import Assembler, Task
from paceline.data.bundle import load_data
from paceline.data.inspect import as_table, inspect_data
from paceline.data.inspect.sheet import _seen
from tests.data.conftest import MakeFolder, truncate


def look(out: Path | None, **values: Any) -> dict[str, Any]:
    sets = {key.replace("__", "."): value for key, value in values.items()}
    return inspect_data(load_config(flags=sets).config, out=out)


def test_planted_faults_are_found_by_name(make_folder: MakeFolder, tmp_path: Path) -> None:
    root = make_folder("set/train", each=6)
    make_folder("set/val", classes=("dog", "cat"), each=2)
    truncate(root / "cat" / "0.jpg")
    shutil.copy(root / "cat" / "3.jpg", root / "dog" / "wrong.jpg")
    shutil.copy(root / "dog" / "1.jpg", root / "dog" / "again.jpg")
    shutil.copy(root / "dog" / "2.jpg", root.parent / "val" / "dog" / "leak.jpg")
    page = look(
        tmp_path / "look",
        data__source=f"imagefolder:{root.parent}",
        data__image_size=16,
        data__mixup=0.3,
    )
    train = page["train"]
    assert (train["samples"], train["read"]) == (14, 14)
    assert train["classes"] == {"cat": 6, "dog": 8}
    assert (train["num_unreadable"], train["num_duplicates"]) == (1, 2)
    assert "cat/0.jpg" in train["unreadable"][0]
    assert train["num_duplicates_of_other_class"] == 1
    conflict = [Path(name).name for name in train["duplicates_of_other_class"][0]]
    assert conflict == ["3.jpg", "wrong.jpg"]
    leaks = {tuple(Path(name).name for name in pair) for pair in page["in_both"]["pairs"]}
    assert ("2.jpg", "leak.jpg") in leaks
    assert train["sizes"]["smallest"] == [40, 30]
    text = as_table(page)
    for said in ("cat/0.jpg", "wrong.jpg", "in the training set, too", "smallest 40 x 30"):
        assert said in text
    assert json.loads((tmp_path / "look" / "data.json").read_text()) == json.loads(json.dumps(page))
    with Image.open(tmp_path / "look" / "data.png") as picture:
        assert picture.width > 900
        assert len(set(picture.getdata())) > 500


def test_mean_and_deviation_are_those_of_the_training_set(tmp_path: Path) -> None:
    page = look(tmp_path)
    assert page["train"]["mean"] == pytest.approx([0.305], abs=1e-3)
    assert page["train"]["std"] == pytest.approx([0.376], abs=1e-3)
    assert page["evaluation"]["num_duplicates"] == page["in_both"]["num"] == 0
    assert list(page["train"]["classes"]) == list("0123456789")


def test_the_picture_shows_what_the_model_is_given() -> None:
    """Normalization undone to the pixel, whatever the scale."""
    data = load_data(load_config().config.data, 0)
    assembler = Assembler(
        train=data.train, evaluation=None, augment=data.augment, seed=0, skip_bad=False
    )
    loaded = assembler(Task(np.array([7]), 2))
    shown = _seen(data.prepare(loaded.batch()).data["input"][0], data)
    wanted = (loaded.data["input"][0, 0].float() * 255 / 16).round().numpy()
    assert abs(shown[..., 0] - wanted).max() <= 1


class Waves(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.full((5,), index % 4), torch.tensor([0.5, 1.0])


def test_what_is_no_image_is_told_in_words(tmp_path: Path) -> None:
    page = paceline.inspect_data(data=Waves(), out=tmp_path)
    assert "picture" not in page
    assert not (tmp_path / "data.png").exists()
    assert page["train"]["shapes"] == [[[5], 6]]
    assert page["train"]["range"] == [0.0, 3.0]
    assert page["train"]["num_duplicates"] == 2
    assert "int64, 0 … 3" in as_table(page)
    assert "evaluation" not in page


def test_without_a_folder_nothing_is_read_or_written(tmp_path: Path) -> None:
    page = look(None)
    assert page["train"] == {
        "samples": 1437,
        "num_classes": 10,
        "classes": page["train"]["classes"],
    }
    assert sum(page["train"]["classes"].values()) == 1437


def test_a_limit_reads_an_even_share(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    config = load_config().config
    page = inspect_data(config, out=tmp_path, limit=100, progress=lambda *place: seen.append(place))
    assert (page["train"]["read"], page["train"]["samples"]) == (100, 1437)
    assert seen[99] == (100, 100)
    assert sum(page["train"]["classes"].values()) == 1437
