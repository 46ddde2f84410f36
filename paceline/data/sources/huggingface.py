"""Hugging Face's data sets: objects, folders that `save_to_disk` wrote, and names on the hub.

Images and classes are found by the features; whoever has set a transform of their own gets what it returns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config.schema import DataConfig
from paceline.data.sources.base import Source
from paceline.data.sources.files import view_of, whole_images
from paceline.data.sources.functions import from_dataset
from paceline.data.sources.held_out import hold_out
from paceline.data.sources.kind import Opened
from paceline.data.sources.pictures import Pictures
from paceline.errors import UserError, nearest

_EVALUATION = ("validation", "val", "valid", "dev", "test")
_LABELS = ("label", "labels", "target", "fine_label", "class")


def open_named(argument: str, config: DataConfig) -> Opened:
    """hf:PATH or hf:NAME."""
    found = _load(argument)
    if not isinstance(found, Mapping):
        return _held_out(found, argument, config)
    train = found.get("train")
    if train is None:
        raise UserError(f"hf:{argument} has no split train", f"its splits are {', '.join(found)}")
    judges = next((name for name in _EVALUATION if name in found), None)
    if judges is None:
        return _held_out(train, argument, config)
    return Opened(
        train=from_hugging_face(train, config),
        evaluation=from_hugging_face(found[judges], config, False),
    )


def open_evaluation_named(argument: str, config: DataConfig, train: Source) -> Source:
    found = _load(argument)
    if isinstance(found, Mapping):
        found = found[next((name for name in _EVALUATION if name in found), next(iter(found)))]
    return from_hugging_face(found, config, False)


def _load(argument: str) -> Any:
    if not argument:
        raise UserError('data.source = "hf:" names no data set', "write hf:PATH or hf:NAME")
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise UserError(
            f"data.source = 'hf:{argument}' needs the package datasets, which is not installed",
            "pip install 'paceline[hf]'",
        ) from error
    path = os.path.expanduser(argument)
    try:
        if os.path.isdir(path) and _is_saved(Path(path)):
            return datasets.load_from_disk(path)
        return datasets.load_dataset(argument)
    except Exception as error:  # of which there are many, from as many libraries
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"hf:{argument} is no folder that save_to_disk wrote, and cannot be loaded by name: {first[0]}",
            "check the name, or load it elsewhere, save_to_disk(FOLDER), and give hf:FOLDER",
        ) from error


def _is_saved(path: Path) -> bool:
    return any(
        (path / name).is_file() for name in ("dataset_dict.json", "dataset_info.json", "state.json")
    )


def _held_out(found: Any, argument: str, config: DataConfig) -> Opened:
    whole = from_hugging_face(found, config)
    labels = whole.labels if whole.labels is not None else np.zeros(len(whole), np.int64)
    num_classes = whole.num_classes if whole.labels is not None else 0
    parts = hold_out(labels, config.val_fraction, f"hf:{argument}", num_classes)
    if not parts.num_held_out:
        return Opened(train=whole, evaluation=None)
    note = f"hf:{argument} has no split for evaluation: {parts.num_held_out} samples are held out"
    return Opened(
        train=from_hugging_face(found.select(parts.kept), config),
        evaluation=from_hugging_face(found.select(parts.out), config, False),
        notes=[note, *parts.notes],
    )


def from_hugging_face(found: Any, config: DataConfig, augmented: bool = True) -> Source:
    """A data set as a source. augmented: for training, where augmentation may crop whole pictures."""
    features = dict(found.features or {})
    name = f"the data set of {', '.join(found.column_names)}"
    picture = _column(config, "path", features, [n for n, f in features.items() if _is_image(f)])
    if picture is None or found.format["type"] == "custom":
        return from_dataset(found)
    classes = [n for n, f in features.items() if hasattr(getattr(f, "feature", f), "names")]
    label = _column(config, "label", features, [*classes, *(n for n in _LABELS if n in features)])
    if label is None:
        raise UserError(
            f"{name} has images in {picture!r} and no labels that can be told",
            f'name their column, for example --set data.columns={{label="{found.column_names[-1]}"}}',
        )
    targets, names = _targets(found, label, features[label])
    size = config.image_size
    plain = found.with_format(None)
    grey = len(plain) > 0 and plain[0][picture].mode == "L"
    whole = augmented and size > 0 and whole_images(config)
    source = Pictures(
        plain,
        targets,
        None if whole or not size else view_of(config),
        name=name,
        num_classes=len(names) or _highest(targets),
        item=_Item(picture, label),
        grey=grey,
    )
    source.class_names = names
    source.multi_label = targets.ndim == 2 and len(names) > 0
    source.augment = "resized-crop-flip" if size else "none"
    return source


class _Item:
    """From a row to (picture, target); a class, since loader processes receive it."""

    def __init__(self, picture: str, label: str) -> None:
        self._picture, self._label = picture, label

    def __call__(self, row: Mapping[str, Any]) -> tuple[Any, Any]:
        return row[self._picture], row[self._label]


def _column(
    config: DataConfig, what: str, features: Mapping[str, Any], found: list[str]
) -> str | None:
    """The column that `data.columns` names, else the first of those found."""
    named = config.columns.get(what)
    if named is None:
        return found[0] if found else None
    if named not in features:
        raise UserError(
            f"data.columns.{what} = {named!r} is no column of the data set",
            nearest(str(named), list(features)),
        )
    return str(named)


def _is_image(feature: Any) -> bool:
    return type(feature).__name__ == "Image"


def _targets(found: Any, label: str, feature: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """(targets of every sample, class names). Lists of classes become rows of 0 and 1."""
    several = getattr(feature, "feature", None)
    if hasattr(several, "names"):
        assert several is not None, "it has names"
        names = tuple(str(n) for n in several.names)
        rows = found.with_format(None, columns=[label])[:][label]
        flags = np.zeros((len(rows), len(names)), np.float32)
        for row, classes in enumerate(rows):
            flags[row, classes] = 1
        return flags, names
    values = np.asarray(found.with_format("numpy", columns=[label])[:][label])
    names = tuple(str(n) for n in getattr(feature, "names", None) or ())
    if values.dtype.kind in "iu":
        return values.astype(np.int64), names
    if values.dtype.kind == "f":
        return values.astype(np.float32), names
    raise UserError(
        f"the column {label!r} holds {values.dtype} values, which are neither classes nor numbers",
        "turn it into classes with class_encode_column, or name another in data.columns.label",
    )


def _highest(targets: np.ndarray) -> int:
    return (
        int(targets.max()) + 1
        if targets.ndim == 1 and targets.dtype.kind == "i" and len(targets)
        else 0
    )
