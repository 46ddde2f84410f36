"""torchvision's sets by name: planted in their genuine formats, downloaded from a server here, or Debian's."""

from __future__ import annotations

import gzip
import http.server
import json
import pickle
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision

from paceline.config.schema import DataConfig
from paceline.data.bundle import load_data
from paceline.data.sources import Opened, open_sources
from paceline.data.sources.torchvision_sets import SETS
from paceline.errors import UserError
from tests.data.conftest import photo

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def opened(source: str, folder: Path, **settings: Any) -> Opened:
    return open_sources(DataConfig(source=source, folder=str(folder), **settings), seed=0)


def refused(source: str, folder: Path, **settings: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        opened(source, folder, **settings)
    return caught.value


def idx_bytes(values: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, values.ndim])
        + struct.pack(f">{values.ndim}I", *values.shape)
        + values.tobytes()
    )


def plant_mnist(folder: Path, *, packed: bool, num: int = 20) -> dict[str, np.ndarray]:
    """The four files with random pixels and labels 0 … 9 in turn; returns the training images and labels."""
    folder.mkdir(parents=True)
    planted = {}
    for prefix, n in (("train", num), ("t10k", num // 2)):
        images = np.random.default_rng(n).integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            planted[f"{prefix}-{name}"] = values
            data = idx_bytes(values)
            file = folder / f"{prefix}-{name}-ubyte{'.gz' if packed else ''}"
            file.write_bytes(gzip.compress(data) if packed else data)
    return planted


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
@pytest.mark.parametrize("packed", [False, True])
def test_mnists_files_as_torchvision_lays_them_out_and_packed(
    tmp_path: Path, name: str, packed: bool
) -> None:
    planted = plant_mnist(tmp_path / SETS[name].folder, packed=packed)
    found = opened(name, tmp_path)
    assert found.evaluation is not None
    assert (len(found.train), len(found.evaluation), found.train.num_classes) == (20, 10, 10)
    sample = found.train.load(3)
    assert np.array_equal(sample["input"][0], planted["train-images-idx3"][3])
    assert sample["input"].dtype == np.uint8 and sample["target"] == 3
    pixels = planted["train-images-idx3"] / 255
    normalization = found.train.normalization
    assert normalization.mean == pytest.approx((pixels.mean(),))
    assert normalization.std == pytest.approx((pixels.std(),))


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="apt-get install dataset-fashion-mnist")
def test_debians_fashion_mnist_is_found_without_a_download(tmp_path: Path) -> None:
    data = load_data(DataConfig(source="fashion-mnist", folder=str(tmp_path / "no")), 0)
    assert data.evaluation is not None
    assert (len(data.train), len(data.evaluation)) == (60_000, 10_000)
    assert (data.channels, data.image_size, data.class_names[9]) == (1, 28, "Ankle boot")
    assert data.train.normalization.mean == pytest.approx((0.2860,), abs=1e-4)
    assert not (tmp_path / "no").exists()


def plant_cifar(root: Path, cls: Any, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """CIFAR's pickles; torchvision's checksums are those of the real files, and are left out."""
    folder = root / cls.base_folder
    folder.mkdir(parents=True)
    rows = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
    label = "fine_labels" if cls is torchvision.datasets.CIFAR100 else "labels"
    for name in ("train_list", "test_list"):
        files = [entry[0] for entry in getattr(cls, name)]
        monkeypatch.setattr(cls, name, [[file, None] for file in files])
        for file in files:
            (folder / file).write_bytes(pickle.dumps({"data": rows, label: [0, 1, 2, 9]}))
    names = {cls.meta["key"]: [f"class {i}" for i in range(10)]}
    (folder / cls.meta["filename"]).write_bytes(pickle.dumps(names))
    monkeypatch.setattr(cls, "meta", {**cls.meta, "md5": None})
    return rows


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = getattr(torchvision.datasets, SETS[name].cls)
    rows = plant_cifar(tmp_path, cls, monkeypatch)
    data = load_data(DataConfig(source=name, folder=str(tmp_path)), 0)
    assert len(data.train) == 4 * len(cls.train_list)
    assert (data.channels, data.image_size, data.num_classes) == (3, 32, 10)
    assert np.array_equal(data.train.load(1)["input"], rows[1].reshape(3, 32, 32))
    assert data.train.load(1)["target"] == 1
    assert len(data.train.normalization.mean) == 3
    assert data.train.augment == "crop-flip"


FILES = {  # where picture i of a label lies
    "food101": ["food-101/images/{label}/{i}.jpg"],
    "eurosat": ["eurosat/2750/{label}/{i}.jpg"],
    "caltech101": [
        "caltech101/101_ObjectCategories/{label}/image_{nth:04d}.jpg",
        "caltech101/101_ObjectCategories/BACKGROUND_Google/image_0001.jpg",
    ],
    "dtd": ["dtd/dtd/images/{label}/{i}.jpg"],
    "country211": [f"country211/{split}/{{label}}/{{i}}.jpg" for split in ("train", "valid")],
}
LABELS = ("apple", "pear")


def plant_files(name: str, root: Path) -> None:
    """Two classes of pictures of many sizes, in the layout of a set of files."""
    for i in range(10):
        for pattern in FILES[name]:
            path = root / pattern.format(label=LABELS[i % 2], i=i, nth=i // 2 + 1)
            path.parent.mkdir(parents=True, exist_ok=True)
            photo(i, 40 + i, 30 + i).save(path)
    if name == "food101":
        (root / "food-101/meta").mkdir()
        for split, numbers in (("train", range(8)), ("test", range(8, 10))):
            table = {
                label: [f"{label}/{i}" for i in numbers if i % 2 == k]
                for k, label in enumerate(LABELS)
            }
            (root / f"food-101/meta/{split}.json").write_text(json.dumps(table))
    if name == "dtd":
        (root / "dtd/dtd/labels").mkdir()
        for split, numbers in (("train", range(6)), ("val", range(6, 8)), ("test", range(8, 10))):
            lines = [f"{LABELS[i % 2]}/{i}.jpg" for i in numbers]
            (root / f"dtd/dtd/labels/{split}1.txt").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("food101", (8, 2)),
        ("eurosat", (8, 2)),
        ("caltech101", (8, 2)),
        ("dtd", (6, 2)),
        ("country211", (10, 10)),
    ],
)
def test_sets_of_files(tmp_path: Path, name: str, sizes: tuple[int, int]) -> None:
    plant_files(name, tmp_path)
    data = load_data(DataConfig(source=name, folder=str(tmp_path), image_size=16), 0)
    assert data.evaluation is not None
    assert (len(data.train), len(data.evaluation)) == sizes
    assert list(data.class_names) == ["apple", "pear"]
    assert (data.channels, data.image_size) == (3, 16)
    moved = tmp_path.rename(tmp_path.with_name(tmp_path.name + "-moved"))
    again = load_data(DataConfig(source=name, folder=str(moved), image_size=16), 0)
    assert again.fingerprint == data.fingerprint
    moved.rename(tmp_path)
    labels = [int(data.evaluation.load(i)["target"]) for i in range(sizes[1])]
    assert sorted(set(labels)) == [0, 1]
    assert (data.notes != []) == (name in ("eurosat", "caltech101"))


def test_a_split_by_name_for_evaluation(tmp_path: Path) -> None:
    plant_files("dtd", tmp_path)
    found = opened("dtd", tmp_path, eval_source="dtd:test", image_size=16).evaluation
    assert found is not None and found.path(0).endswith(b"apple/8.jpg")  # type: ignore[attr-defined]
    error = refused("dtd", tmp_path, eval_source="dtd:tset")
    assert "has no split 'tset'" in error.what and "test" in error.hint


def test_pictures_that_torchvision_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FER2013 has its pixels in a CSV file: such items are brought to RGB and to one size."""
    cls = torchvision.datasets.FER2013
    monkeypatch.setattr(cls, "_RESOURCES", {k: (v[0], None) for k, v in cls._RESOURCES.items()})
    (tmp_path / "fer2013").mkdir()
    rows = [
        f"{i % 7},{usage},{' '.join(['9'] * 2304)}"
        for usage in ("Training", "PublicTest")
        for i in range(7)
    ]
    text = "\n".join(["emotion, Usage, pixels", *rows])
    (tmp_path / "fer2013" / "icml_face_data.csv").write_text(text)
    found = opened("fer2013", tmp_path, augment="none")
    assert found.evaluation is not None
    assert (len(found.train), len(found.evaluation), found.train.num_classes) == (7, 7, 7)
    sample = found.evaluation.load(3)
    assert sample["input"].shape == (3, 48, 48) and sample["target"] == 3


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A web server for the files of a folder: its address, and what was asked of it."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args: Any) -> None:
            if self.command == "GET":
                asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{found.server_port}/", asked
        finally:
            found.shutdown()
            thread.join()


def test_a_set_is_downloaded_once_and_a_broken_one_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = torchvision.datasets.KMNIST
    plant_mnist(tmp_path / "there", packed=True)
    names = [name for name, _ in cls.resources]
    here = tmp_path / "here"
    with server(tmp_path / "there") as (address, asked):
        monkeypatch.setattr(cls, "mirrors", [address])
        error = refused("kmnist", here)  # the checksums are those of the real files
        assert "kmnist is not in" in error.what and "cannot be downloaded" in error.what
        assert f"into {here / 'KMNIST/raw'}" in error.hint and "data.folder" in error.hint
        assert not (here / "KMNIST").exists()
        monkeypatch.setattr(cls, "resources", [(name, None) for name in names])
        asked.clear()
        assert len(opened("kmnist", here).train) == 20
        assert set(asked) == {f"/{name}" for name in names}
        asked.clear()
        assert len(opened("kmnist", here).train) == 20
        assert asked == []
    assert sorted(p.name for p in here.iterdir()) == [".kmnist.lock", "KMNIST"]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "MNIST/raw"
    plant_mnist(folder, packed=True)
    file = folder / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:500])
    assert f"cannot read {file}" in refused("mnist", tmp_path).what
    file.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc"))
    assert "it holds 3 values and not 5" in refused("mnist", tmp_path).what


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("stanford-cars", "torchvision cannot download it"),
        ("imagenet", "ILSVRC2012_devkit_t12.tar.gz"),
        ("emnist:leters", "did you mean 'letters'"),
        ("food101:x", "in data.eval_source"),
        ("cifra10", "did you mean 'cifar10'"),
    ],
)
def test_what_cannot_be_opened(tmp_path: Path, source: str, parts: str) -> None:
    assert parts in str(refused(source, tmp_path))


def test_every_set_of_the_table_is_torchvisions() -> None:
    for known in SETS.values():
        assert hasattr(torchvision.datasets, known.cls) or known.cls == "Imagenette"
