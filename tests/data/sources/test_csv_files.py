"""Images by a CSV: classes, numbers, several labels; splits, weights, and what is wrong with a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.config.schema import DataConfig
from paceline.data.bundle import load_data
from paceline.data.loader import Loader
from paceline.data.sources import Opened, open_sources
from paceline.errors import UserError
from tests.data.conftest import photo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(10):
        (tmp_path / "photos").mkdir(exist_ok=True)
        photo(i).save(tmp_path / "photos" / f"{i}.jpg")
    return tmp_path


def write(folder: Path, header: str, *columns: list[Any], name: str = "set.csv") -> Path:
    rows = [
        f"photos/{i}.jpg," + ",".join(map(str, row))
        for i, row in enumerate(zip(*columns, strict=True))
    ]
    (folder / name).write_text("\n".join([header, *rows]) + "\n")
    return folder / name


def opened(path: Path, **settings: Any) -> Opened:
    config = DataConfig(**{"source": f"csv:{path}", "image_size": 16, **settings})
    return open_sources(config, seed=0)


def refused(path: Path, **settings: Any) -> UserError:
    with pytest.raises(UserError, match="hint: ") as caught:
        opened(path, **settings)
    return caught.value


def test_classes_by_name_and_a_part_held_out(folder: Path) -> None:
    found = opened(write(folder, "path,label", ["cat", "dog"] * 5))
    assert found.evaluation is not None and found.train.labels is not None
    assert (len(found.train), len(found.evaluation)) == (8, 2)
    assert found.train.class_names == ("cat", "dog") and found.train.num_classes == 2
    assert np.bincount(found.train.labels).tolist() == [4, 4]
    assert "has no split column" in found.notes[0]
    target = found.evaluation.load(0)["target"]
    assert target.dtype == np.int64 and target in (0, 1)


def test_classes_that_are_whole_numbers_count_from_0_by_value(folder: Path) -> None:
    found = opened(write(folder, "path,label", [2, 10] * 5), val_fraction=0).train
    assert found.class_names == ("2", "10")
    assert found.labels is not None and found.labels.tolist() == [0, 1] * 5


def test_a_split_column_weights_and_columns_of_other_names(folder: Path) -> None:
    path = write(
        folder,
        "file,kind,fold,w",
        ["a", "b"] * 5,
        ["Train"] * 6 + ["val"] * 3 + ["test"],
        list(range(10)),
    )
    columns = {"path": "file", "label": "kind", "split": "fold", "weight": "w"}
    found = opened(path, columns=columns)
    assert found.evaluation is not None
    assert (len(found.train), len(found.evaluation)) == (6, 3)
    assert found.train.sample_weights is not None
    assert found.train.sample_weights.tolist() == [0, 1, 2, 3, 4, 5]
    assert "1 rows" in found.notes[0]
    data = load_data(
        DataConfig(source=f"csv:{path}", image_size=16, columns=columns, sampling="weighted"), 0
    )
    loader = Loader(
        data.train, seed=0, global_batch=6, augment=data.augment, sampling=data.sampling
    )
    assert 0 not in [i for e in range(5) for step in loader.epoch(e) for i in step.indices]


def test_numbers_to_predict(folder: Path) -> None:
    found = opened(write(folder, "path,label", [i + 0.5 for i in range(10)]), val_fraction=0).train
    assert (found.num_classes, found.multi_label, found.labels) == (0, False, None)
    assert (
        found.load(3)["target"] == np.float32(3.5) and found.load(3)["target"].dtype == np.float32
    )
    whole = write(folder, "path,label", list(range(10)))
    assert opened(whole, val_fraction=0, label_kind="numbers").train.num_classes == 0
    path = write(folder, "path,x,y", [i / 2 for i in range(10)], list(range(10)))
    two = opened(path, columns={"label": ["x", "y"]}, val_fraction=0.2)
    assert two.evaluation is not None
    assert (len(two.train), len(two.evaluation)) == (8, 2)
    data = load_data(
        DataConfig(source=f"csv:{path}", columns={"label": ["x", "y"]}, image_size=16), 0
    )
    assert data.target is not None and data.target.shape == (1, 2)


@pytest.mark.parametrize("form", ["columns", "separator"])
def test_several_labels_a_sample(folder: Path, form: str) -> None:
    if form == "columns":
        path = write(folder, "path,cat,dog", [0, 1] * 5, [1, 1] * 5)
        found = opened(path, columns={"label": ["cat", "dog"]}, val_fraction=0).train
    else:
        path = write(folder, "path,label", ["dog", "cat|dog"] * 5)
        found = opened(path, val_fraction=0).train
    assert found.multi_label and found.num_classes == 2
    assert found.class_names == ("cat", "dog")
    target = found.load(0)["target"]
    assert target.dtype == np.float32 and target.tolist() == [0, 1]
    assert found.load(1)["target"].tolist() == [1, 1]


def test_another_csv_for_evaluation_has_the_classes_of_the_first(folder: Path) -> None:
    first = write(folder, "path,label", ["a", "b", "c", "a", "b"] * 2)
    second = write(folder, "path,label", ["c"] * 10, name="test.csv")
    found = opened(first, eval_source=f"csv:{second}", val_fraction=0).evaluation
    assert found is not None and found.labels is not None and set(found.labels) == {2}
    write(folder, "path,label", ["d"] * 10, name="test.csv")
    error = refused(first, eval_source=f"csv:{second}")
    assert "test.csv:2 has the class 'd'" in error.what


def test_missing_files_are_counted_and_the_first_is_named(folder: Path) -> None:
    path = write(folder, "path,label", ["a", "b"] * 5)
    for i in (3, 7):
        (folder / "photos" / f"{i}.jpg").unlink()
    error = refused(path)
    assert f"2 of the 10 files in {path} do not exist" in error.what
    assert "photos/3.jpg" in error.what and "relative" in error.hint


@pytest.mark.parametrize(
    ("header", "columns", "settings", "part"),
    [
        ("path,label", [["cat"] * 10], {}, "every sample of"),
        ("path,kind", [["a", "b"] * 5], {}, "has no column 'label'"),
        ("path,label", [["a", "b"] * 5], {"columns": {"lable": "x"}}, "data.columns has 'lable'"),
        ("path,label", [["a", "b"] * 5], {"columns": {"label": 3}}, "names no column"),
        ("path,label", [["a"] * 8 + ["b"] * 2], {"val_fraction": 0.9}, "leaves none to train on"),
        ("path,label,split", [["a", "b"] * 5, ["tain"] * 10], {}, "set.csv:2 has the split 'tain'"),
        ("path,label,split", [["a", "b"] * 5, ["val"] * 10], {}, "is in the split train"),
        ("path,label,weight", [["a", "b"] * 5, ["x"] * 10], {}, "has weight = 'x'"),
        ("path,label", [[0.5] * 9 + ["nan"]], {}, "no finite number"),
        ("path,label", [["a,b"] * 10], {}, "too many values"),
        ("path,label", [["a", "b"] * 5], {"image_size": 0}, "data.image_size is not set"),
    ],
)
def test_what_is_wrong_with_a_csv(
    folder: Path, header: str, columns: list[Any], settings: dict[str, Any], part: str
) -> None:
    assert part in refused(write(folder, header, *columns), **settings).what


def test_a_csv_that_does_not_exist_or_is_empty(folder: Path) -> None:
    write(folder, "path,label", ["a", "b"] * 5)
    assert "did you mean 'set.csv'" in refused(folder / "sett.csv").hint
    (folder / "empty.csv").write_text("path,label\n")
    assert "has no rows" in refused(folder / "empty.csv").what
