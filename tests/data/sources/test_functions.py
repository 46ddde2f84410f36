from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

from paceline.config.schema import DataConfig
from paceline.data.importing import import_function
from paceline.data.sources import ArraySource, BadSample, from_dataset, open_sources
from paceline.errors import UserError

MODULE = """
import random, numpy as np, torch
from torch.utils.data import *
from paceline.data.sources import Source

data = TensorDataset(torch.arange(20).float(), torch.arange(20) % 4)

def one(config): return data
def pair(config): return data, Subset(data, range(5))
def split(config):
    order = torch.randperm(20).tolist()
    random.random(), np.random.rand()
    return Subset(data, order[:15]), Subset(data, order[15:])
def nothing(config): pass
def three(config): return data, data, data
def loader(config): return DataLoader(data)
def size(config): return TensorDataset(torch.zeros(3, 1, config.image_size, config.image_size))
class Stream(IterableDataset):
    def __iter__(self): return iter([])
def stream(config): return Stream()
def path(config): return "/data"
class Own(Source):
    num_classes = 2
    def __len__(self): return 3
    def load(self, index): return {"input": torch.zeros(2), "target": index % 2}
def own(config): return Own()
def fails(config): return 1 // 0
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a user's module in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"users_module_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


def opened(spec: str, seed: int = 0, **settings: Any) -> Any:
    return open_sources(DataConfig(source=spec, **settings), seed)


def test_a_function_in_the_working_directory_gives_training_or_both(module: str) -> None:
    assert (len(opened(f"{module}:one").train), opened(f"{module}:one").evaluation) == (20, None)
    pair = opened(f"{module}:pair")
    assert (len(pair.train), len(pair.evaluation)) == (20, 5)
    assert pair.train.num_classes == pair.evaluation.num_classes == 4
    assert opened(f"{module}:own").train.load(1)["target"] == 1
    assert len(opened("digits", eval_source=f"{module}:pair").evaluation) == 5
    assert opened(f"{module}:size", image_size=12).train.load(0)["input"].shape == (1, 12, 12)


def test_a_random_split_is_the_same_on_every_rank_and_disturbs_nothing(module: str) -> None:
    before = torch.get_rng_state(), random.getstate()
    first, again, other = (opened(f"{module}:split", seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    inputs = [[s.train.load(i)["input"].item() for i in range(15)] for s in (first, again, other)]
    assert inputs[0] == inputs[1] != inputs[2]


@pytest.mark.parametrize(
    ("function", "what", "hint"),
    [
        ("nothing", "a NoneType is no data set", "give a torch Dataset"),
        ("three", "a tuple of 3 is no data set", "a pair"),
        ("loader", "a DataLoader is no data set", "Paceline makes the loaders"),
        ("stream", "Stream is an IterableDataset", "samples by index"),
        ("path", "a str is no data set", "give a torch Dataset"),
        ("Sizes", "has no 'Sizes'", "'size'"),
        ("data", "is a TensorDataset, no function", "name a function"),
    ],
)
def test_what_is_no_data_set_is_explained(module: str, function: str, what: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        opened(f"{module}:{function}")
    assert what in caught.value.what
    assert module in caught.value.what
    assert hint in caught.value.hint


def test_a_defect_in_the_function_keeps_its_traceback(module: str) -> None:
    with pytest.raises(ZeroDivisionError):
        opened(f"{module}:fails")


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        (None, "there is no module", "start in the folder that holds it"),
        (
            "import not_there.x",
            "imports 'not_there', which is not installed",
            "pip install not_there",
        ),
        ("from torch import not_there", "importing", ".py:1"),
        ("def f(:", "importing", ".py:1"),
    ],
)
def test_a_module_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, what: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"broken_{tmp_path.name.replace('-', '_')}"
    if text is not None:
        (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(UserError) as caught:
        import_function(f"{name}:f", "model.name")
    assert f"model.name = '{name}:f'" in caught.value.what
    assert what in caught.value.what
    assert hint in str(caught.value)


class Items(Dataset[Any]):
    """A data set of the given items; an exception among them is raised."""

    def __init__(self, *items: Any, **attributes: Any) -> None:
        self.items = items
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.items[index], Exception):
            raise self.items[index]
        return self.items[index]


def test_items_become_samples() -> None:
    x, y = torch.zeros(3, 2, 2), 1
    assert set(from_dataset(Items((x, y))).load(0)) == {"input", "target"}
    assert set(from_dataset(Items([x, y])).load(0)) == {"input", "target"}
    assert set(from_dataset(Items({"image": x, "mask": x})).load(0)) == {"image", "mask"}
    assert set(from_dataset(Items(x)).load(0)) == {"input"}
    assert len(from_dataset(Items((x, y, x))).load(0)) == 3
    assert from_dataset(Items(np.zeros(4))).load(0)["input"].shape == (4,)


@pytest.mark.parametrize(("mode", "shape"), [("RGB", (3, 5, 4)), ("L", (1, 5, 4))])
def test_pillow_images_become_arrays(mode: str, shape: tuple[int, ...]) -> None:
    loaded = from_dataset(Items((Image.new(mode, (4, 5)), 0))).load(0)["input"]
    assert loaded.shape == shape
    assert loaded.dtype == np.uint8


def test_classes_are_found_where_data_sets_have_them() -> None:
    items = ((0.0, 0), (0.0, 2))
    assert from_dataset(Items(*items)).num_classes == 0
    assert from_dataset(Items(*items, num_classes=5)).num_classes == 5
    assert from_dataset(Items(*items, classes=["a", "b", "c"])).class_names == ("a", "b", "c")
    targets = from_dataset(Items(*items, targets=[0, 2]))
    assert targets.num_classes == 3
    assert targets.labels is not None and targets.labels.tolist() == [0, 2]
    subset = from_dataset(Subset(Items(*items, targets=[0, 2], classes=["a", "b", "c"]), [1]))
    assert subset.labels is not None and subset.labels.tolist() == [2]
    assert subset.num_classes == 3
    assert from_dataset(Items(*items), num_classes=9).num_classes == 9
    ragged = Items(*items, labels=[[1], [1, 2]])
    assert from_dataset(ragged).labels is None


def test_tensors_are_loaded_many_at_once() -> None:
    source = from_dataset(TensorDataset(torch.arange(12).reshape(6, 2), torch.arange(6) % 3))
    assert isinstance(source, ArraySource)
    assert source.num_classes == 3
    assert source.load_many(np.array([4, 1]))["input"].tolist() == [[8, 9], [2, 3]]
    with pytest.raises(UserError, match="sample 1 of the TensorDataset has the label 7"):
        from_dataset(TensorDataset(torch.zeros(2), torch.tensor([0, 7])), num_classes=3)
    assert not isinstance(from_dataset(TensorDataset(torch.zeros(2).bfloat16())), ArraySource)


@pytest.mark.parametrize("error", [OSError("truncated"), ValueError("bad"), RuntimeError("no")])
def test_what_a_decoder_raises_is_a_bad_sample_with_its_place(error: Exception) -> None:
    source = from_dataset(Items((0.0, 0), error))
    with pytest.raises(BadSample) as caught:
        source.load(1)
    assert f"{type(error).__name__}: {error}" in caught.value.why
    assert "test_functions.py:" in caught.value.why


def test_a_defect_of_the_data_set_is_no_bad_sample() -> None:
    with pytest.raises(KeyError):
        from_dataset(Items(KeyError("typo"))).load(0)
