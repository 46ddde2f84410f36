"""A user's own data: `module:function` that returns data sets, and the adapter around torch data sets."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.config.schema import DataConfig
from paceline.data.generators import generators_kept, seed_generators
from paceline.data.importing import import_function
from paceline.data.sources.base import ArraySource, BadSample, Normalization, Source
from paceline.errors import UserError

_RETURN = "give a torch Dataset or a paceline Source for training, or a pair: train, evaluation"
UNREADABLE = (OSError, ValueError, RuntimeError, SyntaxError, EOFError)  # what decoders raise


def open_function(spec: str, config: DataConfig, seed: int) -> tuple[Source, Source | None]:
    """(train, evaluation) from the user's function, called with the data settings.

    The global generators are seeded for the call and put back, so that a random split made there is the same on
    every rank and after a resume.
    """
    function = import_function(spec, "data.source")
    with generators_kept():
        seed_generators(seed)
        found = function(config)
    pair = found if isinstance(found, (tuple, list)) and len(found) == 2 else (found, None)
    train, evaluation = pair
    other = None if evaluation is None else as_source(evaluation, spec, config, augmented=False)
    return as_source(train, spec, config), other


def as_source(
    found: Any, where: str, config: DataConfig | None = None, *, augmented: bool = True
) -> Source:
    """A user's object as a source. where: what gave it, for messages. augmented: for training."""
    if isinstance(found, Source):
        return found
    name = type(found).__name__
    if isinstance(found, torch.utils.data.DataLoader):
        raise UserError(
            f"{where}: a DataLoader is no data set", f"{_RETURN}; Paceline makes the loaders"
        )
    if isinstance(found, torch.utils.data.IterableDataset):
        raise UserError(
            f"{where}: {name} is an IterableDataset, whose samples have no index",
            f"{_RETURN}, with __getitem__ and __len__: exact resuming needs samples by index",
        )
    if isinstance(found, (tuple, str, bytes, dict)) or not _is_map_style(found):
        what = f"a tuple of {len(found)}" if isinstance(found, tuple) else f"a {name}"
        raise UserError(f"{where}: {what} is no data set", _RETURN)
    if is_hugging_face(found):
        from paceline.data.sources.huggingface import from_hugging_face

        return from_hugging_face(found, config or DataConfig(), augmented)
    return from_dataset(found)


def is_hugging_face(found: Any) -> bool:
    """Told by what it can do, since the package may not be installed."""
    return all(hasattr(found, name) for name in ("features", "column_names", "with_format"))


def _is_map_style(found: Any) -> bool:
    return hasattr(found, "__getitem__") and hasattr(found, "__len__")


def from_dataset(
    dataset: Any,
    *,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    normalization: Normalization | None = None,
) -> Source:
    """A source around anything with `__getitem__` and `__len__` that yields (x, y), a dict, or x alone.

    The number of classes is taken from the data set's `num_classes`, `classes`, `targets` or `labels`, where it has
    one of them, unless given. normalization: of uint8 inputs; default: to [0, 1].
    """
    names = tuple(class_names if class_names is not None else _class_names(dataset))
    labels = _labels(dataset)
    if num_classes is None:
        num_classes = _num_classes(dataset, names, labels)
    arrays = _arrays(dataset)
    source: Source
    if arrays is not None:
        source = ArraySource(arrays, num_classes=num_classes, name="the TensorDataset")
    else:
        source = DatasetSource(dataset, labels)
        source.num_classes = num_classes
    source.class_names = names
    if normalization is not None:
        source.normalization = normalization
    return source


def _arrays(dataset: Any) -> dict[str, np.ndarray] | None:
    """A TensorDataset of x, or of x and y, as arrays, which load many samples at once."""
    if type(dataset) is not torch.utils.data.TensorDataset or len(dataset.tensors) > 2:
        return None
    if any(tensor.dtype == torch.bfloat16 or tensor.is_cuda for tensor in dataset.tensors):
        return None
    names = ("input", "target")
    return {n: t.detach().numpy() for n, t in zip(names, dataset.tensors, strict=False)}


class DatasetSource(Source):
    """A map-style data set's items as samples."""

    def __init__(self, dataset: Any, labels: np.ndarray | None) -> None:
        self._dataset = dataset
        self.name = type(dataset).__name__
        self.labels = labels

    def __len__(self) -> int:
        return len(self._dataset)

    def load(self, index: int) -> Any:
        try:
            item = self._dataset[index]
        except UNREADABLE as e:
            raise BadSample(index, self.name, describe(e)) from e
        return _as_sample(item)


def describe(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"


def _as_sample(item: Any) -> Any:
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return {"input": _as_leaf(item[0]), "target": _as_leaf(item[1])}
    if isinstance(item, dict):
        return {name: _as_leaf(value) for name, value in item.items()}
    if isinstance(item, (tuple, list)):
        return tuple(_as_leaf(value) for value in item)
    return {"input": _as_leaf(item)}


def _as_leaf(value: Any) -> Any:
    """Pillow's images become (C, H, W) uint8; all else stays."""
    if not (hasattr(value, "getbands") and hasattr(value, "convert")):
        return value
    pixels = np.array(value)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _class_names(dataset: Any) -> Sequence[str]:
    for name in ("class_names", "classes"):
        names = getattr(dataset, name, None)
        if isinstance(names, (list, tuple)) and names:
            return [str(n) for n in names]
    features = getattr(dataset, "features", None)  # Hugging Face
    if isinstance(features, dict) and hasattr(features.get("label"), "names"):
        return [str(n) for n in features["label"].names]
    inner = getattr(dataset, "dataset", None)  # Subset
    return _class_names(inner) if inner is not None else ()


def _labels(dataset: Any) -> np.ndarray | None:
    """The label of every sample, where the data set has them at hand."""
    if type(dataset) is torch.utils.data.TensorDataset and len(dataset.tensors) == 2:
        return _label_array(dataset.tensors[1], len(dataset))
    for name in ("targets", "labels"):
        found = _label_array(getattr(dataset, name, None), len(dataset))
        if found is not None:
            return found
    inner, rows = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    inner_labels = _labels(inner) if _is_map_style(inner) and rows is not None else None
    return None if inner_labels is None else inner_labels[np.asarray(rows)]


def _label_array(found: Any, length: int) -> np.ndarray | None:
    if not isinstance(found, (list, tuple, np.ndarray, Tensor)):
        return None
    try:
        labels = np.asarray(found)
    except ValueError:  # rows of different lengths: boxes, not labels
        return None
    fits = labels.shape == (length,) and np.issubdtype(labels.dtype, np.integer)
    return labels.astype(np.int64) if fits else None


def _num_classes(dataset: Any, names: Sequence[str], labels: np.ndarray | None) -> int:
    declared = getattr(dataset, "num_classes", None)
    if isinstance(declared, int):
        return declared
    if names:
        return len(names)
    return int(labels.max()) + 1 if labels is not None and len(labels) else 0
