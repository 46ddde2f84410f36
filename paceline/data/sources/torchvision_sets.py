"""torchvision's classification sets by name: found where they lie, else downloaded by torchvision's own code.

`torchvision_table.py` says which there are. Sets of small images are kept in memory as uint8; of the others only the
paths, read by our own decoder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.config.schema import DataConfig
from paceline.data.decode import resize
from paceline.data.sources import idx
from paceline.data.sources.base import ArraySource, Normalization, Source
from paceline.data.sources.files import ImageFiles, index_of, view_of, whole_images
from paceline.data.sources.held_out import hold_out
from paceline.data.sources.kind import Kind, Opened
from paceline.data.sources.pictures import Pictures
from paceline.data.sources.torchvision_table import SETS, Known
from paceline.errors import UserError, nearest

_FAILURES = (OSError, RuntimeError, ValueError, EOFError)  # what torchvision raises without a set
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist


def kinds() -> dict[str, Kind]:
    """Every set as a source that the registry takes."""
    return {name: _kind(name, known) for name, known in SETS.items()}


def _kind(name: str, known: Known) -> Kind:
    return Kind(
        description=f"torchvision's {known.cls}",
        argument="SPLIT",
        optional=True,
        downloads=True,
        open=lambda argument, config: _open(name, argument, config),
        open_evaluation=lambda argument, config, train: _open_one(name, argument, config, train),
    )


def _open(name: str, argument: str, config: DataConfig) -> Opened:
    known = _variant(name, argument, list(SETS[name].variants))
    names = list(known.splits)
    found = [_find(name, known, split, config) for split in names[:2]]
    if len(found) == 2:
        train, evaluation = (
            _source(name, known, one, config, augmented=i == 0) for i, one in enumerate(found)
        )
        train.normalization = _measured(train)
        return Opened(train=train, evaluation=evaluation)
    whole = _source(name, known, found[0], config, augmented=False)
    assert whole.labels is not None, f"{name} has labels"
    parts = hold_out(whole.labels, config.val_fraction, name, whole.num_classes)
    train = _source(name, known, found[0], config, augmented=True, rows=parts.kept)
    train.normalization = _measured(train)
    if not parts.num_held_out:
        return Opened(train=train, evaluation=None)
    note = f"{name} has no split of its own: {parts.num_held_out} samples are held out"
    return Opened(
        train=train,
        evaluation=_source(name, known, found[0], config, augmented=False, rows=parts.out),
        notes=[note, *parts.notes],
    )


def _open_one(name: str, argument: str, config: DataConfig, train: Source) -> Source:
    """One split for evaluation: what follows the colon, else what judges the set by itself."""
    known = SETS[name]
    if known.variants or len(known.splits) == 1:
        evaluation = _open(name, argument, config).evaluation
        if evaluation is None:
            raise UserError(
                f"data.eval_source = {name!r} holds nothing out, since data.val_fraction = 0",
                "set data.val_fraction",
            )
        return evaluation
    split = argument or list(known.splits)[1]
    if split not in known.splits:
        raise UserError(
            f"data.eval_source = '{name}:{argument}': {name} has no split {argument!r}",
            nearest(argument, list(known.splits)),
        )
    return _source(name, known, _find(name, known, split, config), config, augmented=False)


def _variant(name: str, argument: str, variants: list[str]) -> Known:
    """The set with the variant that follows the colon, where it has any."""
    known = SETS[name]
    if not variants:
        if argument:
            raise UserError(
                f"data.source = '{name}:{argument}': {name} takes no argument here",
                f"write {name!r}, and '{name}:{argument}' in data.eval_source to judge by that split",
            )
        return known
    chosen = argument or variants[0]
    if chosen not in variants:
        raise UserError(
            f"data.source = '{name}:{argument}': {name} has no {argument!r}",
            nearest(argument, variants),
        )
    return Known(**{**vars(known), "options": {**known.options, "split": chosen}})


def _find(name: str, known: Known, split: str, config: DataConfig) -> Any:
    """torchvision's data set of one split, or (images, labels) read from files that lie elsewhere."""
    root = Path(config.folder).expanduser()
    try:
        return _construct(known, root, split)
    except _FAILURES as error:
        missing: Exception = error
    if known.cls in idx.CLASSES:
        for folder in (root / known.folder, root, *([_DEBIAN] if name == "fashion-mnist" else [])):
            if idx.exists(folder):
                return idx.read(folder, split)
    if not known.download:
        raise _not_found(name, known, root, f"torchvision cannot download it: {missing}")
    return _download(name, known, root, split)


def _construct(known: Known, root: Path, split: str, **more: Any) -> Any:
    import torchvision

    cls = getattr(torchvision.datasets, known.cls, None)
    if cls is None:
        raise UserError(
            f"torchvision {torchvision.__version__} has no {known.cls}", "upgrade torchvision"
        )
    try:
        return cls(root, **known.options, **known.splits[split], **more)
    except ModuleNotFoundError as error:
        packages = " ".join(known.needs or [str(error.name)])
        raise UserError(
            f"torchvision's {known.cls} needs {error.name}, which is not installed",
            f"pip install {packages}",
        ) from error


def _download(name: str, known: Known, root: Path, split: str) -> Any:
    """torchvision downloads into a folder aside, which is moved when it is whole: a kill leaves no half of a set."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root / f".{name}.lock"):
            try:
                return _construct(known, root, split)  # another run was quicker
            except _FAILURES:
                pass
            print(f"downloading {name} into {root}", flush=True)
            aside = root / f".{name}.partial"
            shutil.rmtree(aside, ignore_errors=True)
            _construct(known, aside, split, download=True)
            _move_into(aside, root)
            shutil.rmtree(aside)
    except _FAILURES as error:
        raise _not_found(name, known, root, f"it cannot be downloaded: {_plain(error)}") from error
    return _construct(known, root, split)


@contextmanager
def _alone(path: Path) -> Any:
    """One process at a time, of any run; the others wait."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _move_into(source: Path, target: Path) -> None:
    for entry in sorted(source.iterdir()):
        there = target / entry.name
        if entry.is_dir() and there.is_dir():
            _move_into(entry, there)
        else:
            os.replace(entry, there)


def _plain(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:300] or type(error).__name__


def _not_found(name: str, known: Known, root: Path, why: str) -> UserError:
    where = root / known.folder
    hint = (
        f"put torchvision's files of {known.cls} into {where}, or set data.folder to where they lie"
    )
    if name == "fashion-mnist":
        hint += "; on Debian, apt-get install dataset-fashion-mnist"
    return UserError(f"data set {name} is not in {where}, and {why}", hint)


def _source(
    name: str,
    known: Known,
    found: Any,
    config: DataConfig,
    *,
    augmented: bool,
    rows: np.ndarray | None = None,
) -> Source:
    """found: from `_find`. augmented: for training. rows: the samples to take."""
    if known.in_memory:
        return _in_memory(name, known, found, config.image_size, rows)
    whole = augmented and whole_images(config)
    view = None if whole else view_of(config, known.image_size)
    names = _class_names(found)
    listed = _files(found)
    if listed is None:
        return Pictures(
            found,
            _labels_one_by_one(found),
            view,
            name=name,
            num_classes=known.num_classes,
            rows=rows,
        )
    paths, labels = listed
    classes = names or [str(label) for label in range(known.num_classes)]
    # Names below data.folder, so that a run goes on after its data has moved.
    root = os.path.join(os.path.expanduser(config.folder), "")
    relative = [os.fspath(path).removeprefix(root) for path in paths]
    index = index_of(relative, np.asarray(labels, np.int64), classes, root=root)
    return ImageFiles(index, view, rows, name=name)


def _in_memory(
    name: str, known: Known, found: Any, image_size: int, rows: np.ndarray | None
) -> ArraySource:
    images, labels = found if isinstance(found, tuple) else _arrays(found)
    if rows is not None:
        images, labels = images[rows], labels[rows]
    if image_size not in (0, images.shape[-1]):
        images = resize(torch.from_numpy(images), image_size, image_size).numpy()
    classes = _class_names(found) or _class_names(_torchvision_class(known.cls))
    num_classes = len(classes) or known.num_classes
    source = ArraySource({"input": images, "target": labels}, num_classes=num_classes, name=name)
    source.class_names = classes
    source.augment = known.augment
    return source


def _torchvision_class(name: str) -> Any:
    import torchvision

    return getattr(torchvision.datasets, name)


def _arrays(found: Any) -> tuple[np.ndarray, np.ndarray]:
    """(n, C, H, W) uint8 and (n,) int64 of a set that torchvision keeps in memory."""
    images = np.asarray(found.data)
    labels = np.asarray(found.targets if hasattr(found, "targets") else found.labels, np.int64)
    if labels.ndim == 2:  # QMNIST: more about a digit than its class
        labels = labels[:, 0]
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[-1] == 3:
        images = images.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images), labels


def _class_names(found: Any) -> tuple[str, ...]:
    names = getattr(found, "classes", None) or getattr(found, "categories", None) or ()
    return tuple(n if isinstance(n, str) else str(n[0]) for n in names)


def _files(found: Any) -> tuple[Sequence[Any], Sequence[int]] | None:
    """(paths, labels) where the set is files of its own; torchvision's sets differ in how they hold them."""
    if hasattr(found, "categories"):  # Caltech
        folder, pattern = (
            ("101_ObjectCategories", "image_{1:04d}.jpg")
            if type(found).__name__ == "Caltech101"
            else ("256_ObjectCategories", "{0:03d}_{1:04d}.jpg")
        )
        paths = [
            os.path.join(found.root, folder, found.categories[y], pattern.format(y + 1, number))
            for y, number in zip(found.y, found.index, strict=True)
        ]
        return paths, found.y
    for name in ("_image_files", "_images"):
        if hasattr(found, name):
            return getattr(found, name), found._labels
    for name in ("_samples", "samples", "imgs"):
        pairs = getattr(found, name, None)
        if pairs and isinstance(pairs[0][0], (str, os.PathLike)):
            return [path for path, _ in pairs], [label for _, label in pairs]
    return None


def _labels_one_by_one(found: Any) -> np.ndarray | None:
    """FER2013 holds its samples as pairs; PCAM's labels are only known by loading."""
    pairs = getattr(found, "_samples", None)
    return None if pairs is None else np.array([label for _, label in pairs], np.int64)


def _measured(train: Source) -> Normalization:
    """Mean and standard deviation of the training images where they are at hand, else the usual ones."""
    if not isinstance(train, ArraySource):
        return train.normalization
    images = train.arrays["input"]
    channels = range(images.shape[1])
    pairs = [_mean_and_std(images[:, channel]) for channel in channels]
    return Normalization(mean=tuple(m for m, _ in pairs), std=tuple(s for _, s in pairs))


def _mean_and_std(pixels: np.ndarray) -> tuple[float, float]:
    """Of uint8 values over 255, exact: from their histogram. std at least one step of them."""
    counts = np.zeros(256, np.int64)
    for start in range(0, len(pixels), 1024):
        counts += np.bincount(pixels[start : start + 1024].ravel(), minlength=256)
    values = np.arange(256) / 255
    mean = float((counts * values).sum() / counts.sum())
    variance = float((counts * (values - mean) ** 2).sum() / counts.sum())
    return mean, max(variance**0.5, 1 / 255)
