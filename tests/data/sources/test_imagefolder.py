from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from paceline.config.schema import DataConfig
from paceline.data.decode import View
from paceline.data.sources import BadSample, Opened, open_sources
from paceline.data.sources.files import ImageFiles, printable
from paceline.data.sources.imagefolder import scan
from paceline.errors import UserError
from tests.data.conftest import MakeFolder, photo, truncate


def open_folder(path: Path | str, **settings: object) -> Opened:
    config = DataConfig(**{"source": f"imagefolder:{path}", "image_size": 16, **settings})  # type: ignore[arg-type]
    return open_sources(config, seed=0)


def refused(path: Path | str, **settings: object) -> UserError:
    with pytest.raises(UserError) as caught:
        open_folder(path, **settings)
    return caught.value


@pytest.mark.parametrize("name", ["val", "valid", "test"])
def test_train_and_evaluation_folders(make_folder: MakeFolder, name: str) -> None:
    root = make_folder("set/train")
    make_folder(f"set/{name}", each=2)
    opened = open_folder(root.parent)
    assert isinstance(opened.train, ImageFiles)
    assert isinstance(opened.evaluation, ImageFiles)
    assert (len(opened.train), len(opened.evaluation)) == (10, 4)
    assert opened.train.class_names == ("cat", "dog")
    assert opened.train.labels.tolist() == [0] * 5 + [1] * 5
    assert opened.train.path(0).endswith(b"cat/0.jpg")
    assert opened.evaluation.path(3).endswith(f"{name}/dog/1.jpg".encode())
    assert opened.notes == []


def test_class_folders_directly_hold_a_fifth_out_and_say_so(make_folder: MakeFolder) -> None:
    root = make_folder(each=10)
    opened = open_folder(root)
    train, evaluation = opened.train, opened.evaluation
    assert isinstance(train, ImageFiles) and isinstance(evaluation, ImageFiles)
    paths = [s.path(i) for s in (train, evaluation) for i in range(len(s))]
    assert len(set(paths)) == 20
    assert np.bincount(evaluation.labels).tolist() == [2, 2]
    assert "4 of its 20 images" in opened.notes[0]
    again = open_folder(root).evaluation
    assert again is not None and again.digest() == evaluation.digest()


def test_a_class_may_be_called_train(make_folder: MakeFolder) -> None:
    assert open_folder(make_folder(classes=("bus", "train"))).train.class_names == ("bus", "train")


def test_whole_images_where_augmentation_crops_and_squares_elsewhere(
    make_folder: MakeFolder,
) -> None:
    root = make_folder()
    whole, square = open_folder(root), open_folder(root, augment="none")
    assert {whole.train.load(i)["input"].shape[1:] for i in range(8)} > {(30, 40)}
    assert square.train.load(3)["input"].shape == (3, 16, 16)
    assert whole.evaluation is not None
    assert whole.evaluation.load(0)["input"].shape == (3, 16, 16)


def test_the_evaluation_view_is_the_settings(make_folder: MakeFolder) -> None:
    """As torchvision's Resize and CenterCrop; 8/7 of the size where nothing is said."""
    folder = make_folder()
    for resize, used in ((0, 18), (16, 16), (25, 25)):
        settings = {"eval_resize": resize, "interpolation": "bicubic"}
        evaluation = open_folder(folder, **settings).evaluation
        assert evaluation is not None
        shrink = v2.Resize(used, v2.InterpolationMode.BICUBIC, antialias=True)
        theirs = v2.CenterCrop(16)(shrink(evaluation.load_whole(0)["input"]))
        assert torch.equal(evaluation.load(0)["input"], theirs)
    error = refused(folder, eval_resize=15)
    assert "eval_resize = 15 is smaller than data.image_size = 16" in error.what


def test_another_evaluation_folder_counts_in_the_classes_of_training(
    make_folder: MakeFolder,
) -> None:
    root, other = make_folder(), make_folder("other", classes=("dog",), each=3)
    opened = open_folder(root, eval_source=f"imagefolder:{other}")
    assert opened.evaluation is not None and opened.evaluation.labels is not None
    assert opened.evaluation.labels.tolist() == [1, 1, 1]
    assert opened.evaluation.num_classes == 2
    strange = make_folder("strange", classes=("dgo",), each=1)
    error = refused(root, eval_source=f"imagefolder:{strange}")
    assert "strange/dgo is in the evaluation set and not in the training set" in error.what
    assert "'dog'" in error.hint


def test_what_is_no_image_is_counted_and_hidden_files_are_not_seen(make_folder: MakeFolder) -> None:
    root = make_folder()
    (root / "cat" / "notes.txt").write_text("")
    (root / "cat" / ".DS_Store").write_text("")
    (root / ".cache").mkdir()
    deep = root / "dog" / "more" / "still more"
    deep.mkdir(parents=True)
    photo(1).save(deep / "DEEP.JPEG")
    index = scan(bytes(root))
    assert (len(index), index.ignored, index.classes) == (11, 1, (b"cat", b"dog"))
    assert any("1 files" in note for note in open_folder(root).notes)


def test_the_index_is_arrays_that_do_not_depend_on_the_disk_s_order(
    make_folder: MakeFolder,
) -> None:
    root = make_folder()
    copy = root.parent / "copy"
    for file in sorted(root.rglob("*.jpg"), reverse=True):
        target = copy / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    one, other = scan(bytes(root)), scan(bytes(copy))
    assert np.array_equal(one.names, other.names)
    assert one.names.dtype == np.uint8
    assert one.path(7) == bytes(root / "dog" / "2.jpg")


def test_the_fingerprint_sees_another_file(make_folder: MakeFolder) -> None:
    root = make_folder()
    before = open_folder(root).train.digest()
    assert open_folder(root).train.digest() == before
    (root / "cat" / "0.jpg").rename(root / "cat" / "00.jpg")
    assert open_folder(root).train.digest() != before


def test_scanning_many_files_is_quick(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(2500):
            os.close(os.open(tmp_path / name / f"{i}.jpg", os.O_CREAT | os.O_WRONLY))
    start = time.process_time()
    assert len(scan(bytes(tmp_path))) == 5000
    assert time.process_time() - start < 0.5


# Bad input


def test_a_missing_path_names_the_nearest(make_folder: MakeFolder) -> None:
    root = make_folder("photos")
    error = refused(f"{root.parent}/fotos/train")
    assert f"{root.parent}/fotos/train does not exist" in error.what
    assert f"{root.parent} exists" in error.hint
    assert "'photos'" in error.hint


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_text("")
    error = refused(tmp_path / "x.zip")
    assert "is a file" in error.what
    assert "sub-folder" in error.hint


def test_no_path() -> None:
    assert "names no folder" in refused("").what


def test_no_class_folders(tmp_path: Path) -> None:
    photo(1).save(tmp_path / "a.jpg")
    error = refused(tmp_path)
    assert "has no class folders" in error.what
    assert "folder of their own" in error.hint


def test_class_folders_without_images_are_named(make_folder: MakeFolder) -> None:
    root = make_folder()
    (root / "bird").mkdir()
    error = refused(root)
    assert f"no images in the class folder {root}/bird" in error.what
    assert ".jpg" in error.hint
    for i in range(5):
        (root / f"empty{i}").mkdir()
    assert "and 3 more" in refused(root).what


def test_the_image_size_is_needed(make_folder: MakeFolder) -> None:
    error = refused(make_folder(), image_size=0)
    assert "data.image_size is not set" in error.what
    assert "224" in error.hint


def test_one_image_is_too_few_to_hold_out(make_folder: MakeFolder) -> None:
    assert "none can be held out" in refused(make_folder(classes=("cat",), each=1)).what


@contextmanager
def without_privileges() -> Iterator[None]:
    """root may read everything, so that a test run as root becomes somebody else for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unreadable_folder_and_an_unreadable_file(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):  # pytest's folders are its user's alone
        if folder.owner() == "root" and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "cat").mkdir()
    photo(1).save(tmp_path / "cat" / "a.jpg")
    photo(2).save(tmp_path / "cat" / "b.jpg")
    opened = open_folder(tmp_path, augment="none")
    for file in (tmp_path / "cat").iterdir():
        file.chmod(0)
    with without_privileges(), pytest.raises(BadSample, match="permission denied"):
        opened.train.load(0)
    (tmp_path / "cat").chmod(0)
    with without_privileges():
        error = refused(tmp_path)
    (tmp_path / "cat").chmod(0o755)
    assert f"cannot read the folder {tmp_path}/cat: permission denied" in error.what
    assert "chmod" in error.hint


def test_a_truncated_file_is_named(make_folder: MakeFolder) -> None:
    root = make_folder()
    truncate(root / "cat" / "0.jpg")
    source = ImageFiles(scan(bytes(root)), View(16), name="imagefolder")
    with pytest.raises(BadSample) as caught:
        source.load(0)
    assert caught.value.index == 0
    assert caught.value.path == f"{root}/cat/0.jpg"
    assert "truncated" in caught.value.why.lower()


# Hostile names


def test_hostile_names_are_only_names(make_folder: MakeFolder) -> None:
    root = make_folder(classes=("cat",), each=1)
    marker = root.parent / "owned"
    names = [
        b"new\nline.jpg",
        b"not \xff\xfe utf-8.jpg",
        b"$(touch " + bytes(marker).replace(b"/", b"\xc3\xb7") + b").jpg",
        b"; touch owned .jpg",
        b"-rf.jpg",
        b"\x1b[31mred.jpg",
        b"%s%n{0}.jpg",
        b"l" * 250 + b".jpg",
    ]
    hostile = os.path.join(bytes(root), b"cl\nass \xff")
    os.mkdir(hostile)
    for name in names:
        photo(1).save(root / "x.jpg")
        os.rename(root / "x.jpg", os.path.join(hostile, name))
    index = scan(bytes(root))
    source = ImageFiles(index, View(16), name="imagefolder")
    assert len(source) == 1 + len(names)
    assert {os.path.basename(source.path(i)) for i in range(1, 9)} == set(names)
    assert all(source.load(i)["input"].shape == (3, 16, 16) for i in range(len(source)))
    assert source.class_names == ("cat", "cl\\nass \\xff")
    assert len(source.digest()) == 16
    assert not marker.exists()
    truncate(Path(os.fsdecode(os.path.join(hostile, b"\x1b[31mred.jpg"))))
    bad = next(i for i in range(9) if b"red" in source.path(i))
    with pytest.raises(BadSample) as caught:
        source.load(bad)
    assert "\x1b" not in str(caught.value)
    assert "\\x1b[31mred.jpg" in str(caught.value)


def test_links_loops_and_pipes(make_folder: MakeFolder) -> None:
    root = make_folder(each=2)
    (root / "cat" / "up").symlink_to(root)
    (root / "cat" / "self").symlink_to(root / "cat")
    (root / "cat" / "a.jpg").symlink_to(root / "cat" / "a.jpg")  # to itself
    (root / "cat" / "gone.jpg").symlink_to(root / "nowhere.jpg")
    os.mkfifo(root / "cat" / "pipe.jpg")  # opening it would wait for ever
    (root / "bird").symlink_to(root / "dog")
    index = scan(bytes(root))
    assert index.classes == (b"bird", b"cat", b"dog")
    names = [os.path.relpath(index.path(i), bytes(root)) for i in range(len(index))]
    assert [n for n in names if n.startswith(b"bird")] == [b"bird/0.jpg", b"bird/1.jpg"]
    assert b"cat/up/cat/0.jpg" not in names
    assert not any(b"pipe" in name for name in names)
    source = ImageFiles(index, View(16), name="imagefolder")
    for name in (b"cat/a.jpg", b"cat/gone.jpg"):
        with pytest.raises(BadSample):
            source.load(names.index(name))


@pytest.mark.parametrize("path", ["/" + "x" * 5000, "~nobody-of-this-name/x", "a\nb"])
def test_hostile_paths_are_refused(path: str) -> None:
    assert "does not exist" in refused(path).what


def test_names_are_shown_in_one_line() -> None:
    assert printable(b"a\nb\x1b\xff\xc3\xa9") == "a\\nb\\x1b\\xffé"


def test_how_much_is_held_out(make_folder: MakeFolder) -> None:
    root = make_folder(each=10)
    opened = open_folder(root, val_fraction=0.5)
    assert opened.evaluation is not None
    assert (len(opened.train), len(opened.evaluation)) == (10, 10)
    assert open_folder(root, val_fraction=0).evaluation is None


def test_a_fraction_that_leaves_a_class_without_samples(make_folder: MakeFolder) -> None:
    error = refused(make_folder(each=2), val_fraction=0.9)
    assert "data.val_fraction = 0.9 holds out all 2 samples of class 0" in error.what
    assert "smaller" in error.hint
