"""Hugging Face's data sets as objects and from the folders that their own code writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paceline.config.schema import DataConfig
from paceline.data.bundle import load_data
from paceline.data.loader import Loader
from paceline.data.sources import open_sources
from paceline.data.sources.functions import as_source
from paceline.errors import UserError
from tests.data.conftest import photo

datasets = pytest.importorskip("datasets")


def make(num: int = 10, *, grey: bool = False, names: tuple[str, ...] = ("cat", "dog")) -> Any:
    pictures = [photo(i, 40 + i, 30) for i in range(num)]
    if grey:
        pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
        pictures = [Image.fromarray(pixels + i) for i in range(num)]
    features = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=list(names))}
    )
    columns = {"picture": pictures, "kind": [i % len(names) for i in range(num)]}
    return datasets.Dataset.from_dict(columns, features=features)


def test_an_object_is_told_by_its_features() -> None:
    config = DataConfig(image_size=16)
    source = as_source(make().shuffle(seed=1), "data=", config)
    assert (source.num_classes, source.class_names) == (2, ("cat", "dog"))
    assert source.labels is not None
    sample = source.load(4)
    assert sample["target"] == source.labels[4]
    assert source.augment == "resized-crop-flip" and sample["input"].shape == (
        3,
        30,
        sample["input"].shape[2],
    )


def test_grey_pictures_of_one_size_stay_as_they_are() -> None:
    source = as_source(make(grey=True), "data=", DataConfig())
    sample = source.load(3)
    assert sample["input"].shape == (1, 8, 8) and source.augment == "none"
    assert int(sample["input"][0, 0, 1]) == 4


def test_a_transform_of_the_users_is_kept() -> None:
    found = make()
    found.set_transform(
        lambda rows: {"input": [np.zeros(3)] * len(rows["kind"]), "target": rows["kind"]}
    )
    source = as_source(found, "data=", DataConfig())
    assert source.load(0)["input"].shape == (3,)


def test_lists_of_classes_and_numbers() -> None:
    labels = datasets.Sequence(datasets.ClassLabel(names=["cat", "dog", "fox"]))
    features = datasets.Features({"picture": datasets.Image(), "kinds": labels})
    columns = {"picture": [photo(i) for i in range(4)], "kinds": [[0, 2], [], [1], [2]]}
    found = datasets.Dataset.from_dict(columns, features=features)
    source = as_source(found, "data=", DataConfig())
    assert source.multi_label and source.num_classes == 3
    assert [source.load(i)["target"].tolist() for i in (0, 1)] == [[1, 0, 1], [0, 0, 0]]
    numbers = found.remove_columns("kinds").add_column("target", [0.5, 1.5, 2.5, 3.5])
    source = as_source(numbers, "data=", DataConfig())
    assert source.num_classes == 0 and source.load(2)["target"] == np.float32(2.5)


def test_from_disk_with_loader_processes(tmp_path: Path) -> None:
    splits = {"train": make(8), "test": make(4)}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "set")
    data = load_data(DataConfig(source=f"hf:{tmp_path / 'set'}", image_size=16), 0)
    assert data.evaluation is not None
    assert (len(data.train), len(data.evaluation), data.num_classes) == (8, 4, 2)
    seen = [
        [b.data["input"] for step in loader.epoch(0) for b in step.micro_batches]
        for workers in (0, 1)
        if (
            loader := Loader(
                data.train, seed=0, global_batch=4, augment=data.augment, workers=workers
            )
        )
    ]
    assert all((a == b).all() for a, b in zip(*seen, strict=True))


def test_without_a_split_a_part_is_held_out(tmp_path: Path) -> None:
    make(10).save_to_disk(tmp_path / "set")
    config = DataConfig(source=f"hf:{tmp_path / 'set'}", image_size=16)
    found = open_sources(config, seed=0)
    assert found.evaluation is not None and found.evaluation.labels is not None
    assert (len(found.train), len(found.evaluation)) == (8, 2)
    assert sorted(found.evaluation.labels) == [0, 1]


def test_what_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = DataConfig(source=f"hf:{tmp_path}", image_size=16)
    with pytest.raises(UserError, match="cannot be loaded by name"):
        open_sources(config, seed=0)
    unlabelled = make().remove_columns("kind")
    with pytest.raises(UserError, match="no labels that can be told"):
        as_source(unlabelled, "data=", DataConfig())
    wrong = DataConfig(columns={"label": "knid"})
    with pytest.raises(UserError, match="did you mean 'kind'"):
        as_source(make(), "data=", wrong)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'paceline\[hf\]'"):
        open_sources(config, seed=0)
