"""What a data source is: samples by index, and what is known of them. Knows nothing of order, ranks or batches."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """What the device makes of uint8 inputs: (value x scale - mean) / std, mean and std by channel."""

    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


IMAGENET = Normalization(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class BadSample(Exception):
    """One sample cannot be read: which, from where, why. `data.on_bad_sample` decides what follows."""

    def __init__(self, index: int, path: str, why: str) -> None:
        super().__init__(index, path, why)
        self.index = index
        self.path = path
        self.why = why

    def __str__(self) -> str:
        return f"sample {self.index}{f' ({self.path})' if self.path else ''}: {self.why}"


class Source(ABC):
    """Samples 0 … len - 1. Subclasses set what they know; every attribute has a default.

    name: for messages. num_classes: 0 where samples have no classes. class_names: one a class, or none.
    labels: the class of every sample, where it is known without loading; split, fingerprint, class weights and
        balanced sampling use it.
    multi_label: the target is a row of 0 and 1, float32, one a class. Otherwise targets are a class, int64, where
        there are classes, and numbers, float32 (one or a row of them), where num_classes is 0.
    sample_weights: how often each sample is to be drawn with data.sampling = "weighted", where the source knows.
    unit, units_per_sample: what speed is told in, and how many of it a sample has.
    normalization: of uint8 inputs, done on the device.
    augment: what `data.augment = "auto"` means here.
    in_memory: loading is so cheap that loader processes would only slow it down.
    draws_globally: `load` draws from the global generators of torch, numpy or random, which are then
        seeded for each sample and put back afterwards.
    modules: what a loader process imports; done once for all of them.
    whole_images: samples are image files of any size, of which evaluations see the central square.
    """

    name: str = "the data source"
    num_classes: int = 0
    class_names: Sequence[str] = ()
    labels: np.ndarray | None = None
    multi_label: bool = False
    sample_weights: np.ndarray | None = None
    unit: str = "images"
    units_per_sample: int = 1
    normalization: Normalization = Normalization()
    augment: str = "none"
    in_memory: bool = False
    draws_globally: bool = True
    modules: tuple[str, ...] = ()
    whole_images: bool = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def load(self, index: int) -> Any:
        """A pytree of arrays, tensors and numbers; by convention {"input": (C, H, W) uint8 or float,
        "target": int}. Raises BadSample."""

    def load_whole(self, index: int) -> Any:
        """The sample as it is stored, before any resizing; for looking at a data set, not for training."""
        return self.load(index)

    def digest(self) -> str:
        """Changes when a resumed run would see other samples under the same indices; cheap."""
        known = [type(self).__name__, str(len(self)), str(self.num_classes), *self.class_names]
        digest = hashlib.blake2b("\0".join(known).encode("utf-8", "surrogateescape"), digest_size=8)
        if self.labels is not None:
            digest.update(np.ascontiguousarray(self.labels, dtype=np.int64).tobytes())
        return digest.hexdigest()


class VectorSource(Source):
    """A source that loads many samples at once faster than one by one, all of one shape."""

    in_memory = True
    draws_globally = False

    @abstractmethod
    def load_many(self, indices: np.ndarray) -> Any:
        """Like `load`, with the samples as first dimension. The caller may write into the result."""

    def load(self, index: int) -> Any:
        from torch.utils import _pytree as pytree

        return pytree.tree_map(lambda rows: rows[0], self.load_many(np.array([index])))


class ArraySource(VectorSource):
    """Samples that lie in memory: a dict of arrays with the sample as first dimension."""

    def __init__(self, arrays: dict[str, np.ndarray], *, num_classes: int, name: str) -> None:
        lengths = {key: len(array) for key, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise UserError(f"the arrays of {name} differ in length: {lengths}", "one row a sample")
        self.arrays = arrays
        self.name = name
        self.num_classes = num_classes
        target = arrays.get("target")
        one_class = target is not None and target.ndim == 1 and target.dtype.kind in "iu"
        if num_classes and target is not None and one_class:
            self.labels = target
            check_labels(target, np.arange(len(target)), num_classes, name)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def load_many(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        return {key: array[indices] for key, array in self.arrays.items()}


def check_labels(labels: np.ndarray, indices: np.ndarray, num_classes: int, name: str) -> None:
    """Every label is in [0, num_classes). indices: the samples that the labels belong to."""
    if len(labels) == 0 or (labels.min() >= 0 and labels.max() < num_classes):
        return
    row = int(np.flatnonzero((labels < 0) | (labels >= num_classes))[0])
    raise UserError(
        f"sample {int(indices[row])} of {name} has the label {int(labels[row])}, "
        f"and there are {num_classes} classes",
        f"labels run from 0 to {num_classes - 1}; correct the label or the number of classes",
    )


def stratified_split(labels: np.ndarray, held_out: float) -> tuple[np.ndarray, np.ndarray]:
    """(kept, held out) sample indices, ascending: the same fraction of every class, always the same samples.

    Which samples of a class: those with the smallest hash. How many: largest remainders, at least 1 of all.
    """
    from paceline.data.draws import GOLDEN, mix

    classes, counts = np.unique(labels, return_counts=True)
    total = min(max(1, int(np.ceil(len(labels) * held_out))), len(labels) - 1)
    quotas = counts * held_out
    takes = np.floor(quotas).astype(np.int64)
    order = np.argsort(takes - quotas, kind="stable")
    takes[order[: max(0, total - int(takes.sum()))]] += 1
    hashes = mix((np.arange(len(labels), dtype=np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))
    out = np.zeros(len(labels), bool)
    for label, take in zip(classes, takes, strict=True):
        members = np.flatnonzero(labels == label)
        out[members[np.argsort(hashes[members], kind="stable")[:take]]] = True
    return np.flatnonzero(~out), np.flatnonzero(out)
