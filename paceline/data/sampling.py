"""Which samples an epoch has: all of them once, or draws with replacement by weight."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.config.schema import DataConfig
from paceline.data import order
from paceline.data.draws import GOLDEN, key, mix
from paceline.data.sources.base import Source
from paceline.errors import UserError

_DRAW = 0xD4A3  # keeps these keys apart from those of the order and of augmentation


@dataclass(frozen=True)
class Sampling:
    """An epoch's samples as a pure function of (seed, epoch): nothing in it knows of ranks, batches or a resume.

    num_samples: of the source. epoch_samples: positions of an epoch. weights: of the source's samples, for draws with
    replacement; None: each sample at most once.
    """

    num_samples: int
    epoch_samples: int
    weights: np.ndarray | None = None

    def epoch(self, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """(sample indices, keys of their draws), both (epoch_samples,) int64, by position.

        Augmentation is drawn by key: the index itself the first time that it occurs in the epoch, another number
        each further time, so that a sample that is drawn twice is seen in two ways.
        """
        if self.weights is None:
            indices = order.permutation(seed, epoch, self.num_samples)[: self.epoch_samples]
            return indices, indices
        positions = np.arange(self.epoch_samples, dtype=np.uint64)
        hashes = mix(positions * np.uint64(GOLDEN) + np.uint64(key(_DRAW, seed, epoch)))
        uniform = (hashes >> np.uint64(11)) * 2.0**-53
        bounds = np.cumsum(self.weights)
        indices = np.searchsorted(bounds, uniform * bounds[-1], side="right")
        indices = np.minimum(
            indices, np.flatnonzero(self.weights)[-1]
        )  # against rounding at the end
        return indices, indices + self.num_samples * occurrences(indices)

    def digest(self) -> str:
        """Changes when a resumed run would see other samples."""
        if self.weights is None and self.epoch_samples == self.num_samples:
            return ""
        digest = hashlib.blake2b(str(self.epoch_samples).encode(), digest_size=8)
        if self.weights is not None:
            digest.update(self.weights.tobytes())
        return digest.hexdigest()


def occurrences(indices: np.ndarray) -> np.ndarray:
    """How often the same value stands before each: (n,) int64."""
    by_value = np.argsort(indices, kind="stable")
    ordered = indices[by_value]
    first = np.searchsorted(ordered, ordered, side="left")
    counts = np.empty(len(indices), np.int64)
    counts[by_value] = np.arange(len(indices)) - first
    return counts


def make_sampling(config: DataConfig, source: Source) -> Sampling:
    """What `data.sampling` and `data.epoch_samples` say of a training source."""
    n = len(source)
    if config.sample_weights and config.sampling != "weighted":
        raise UserError(
            f"data.sample_weights is set, and data.sampling = {config.sampling!r} has no use for it",
            'set data.sampling = "weighted", or leave the weights out',
        )
    if config.sampling == "shuffle":
        if config.epoch_samples > n:
            raise UserError(
                f"data.epoch_samples = {config.epoch_samples}, and {source.name} has {n} samples,"
                " each at most once an epoch",
                'give less, or set data.sampling = "balanced" or "weighted", which draw with replacement',
            )
        return Sampling(n, config.epoch_samples or n)
    weights = _balanced(source) if config.sampling == "balanced" else _weights(config, source)
    return Sampling(n, config.epoch_samples or n, weights)


def class_counts(source: Source, setting: str) -> np.ndarray:
    """Training samples of each class. setting: what asks for it, for the message."""
    if source.labels is None or not source.num_classes:
        raise UserError(
            f"{setting} needs the class of every sample, and {source.name} does not tell it",
            "give the data set an attribute targets or labels, or give weights",
        )
    return np.bincount(source.labels, minlength=source.num_classes)


def _balanced(source: Source) -> np.ndarray:
    """Every class equally often, whatever its size."""
    counts = class_counts(source, 'data.sampling = "balanced"')
    return 1.0 / counts[source.labels]


def _weights(config: DataConfig, source: Source) -> np.ndarray:
    found = _read(config.sample_weights) if config.sample_weights else source.sample_weights
    where = config.sample_weights or source.name
    if found is None:
        raise UserError(
            f'data.sampling = "weighted", and {source.name} has no weights',
            "name a file in data.sample_weights, or a column `weight` of a CSV",
        )
    if found.shape != (len(source),):
        raise UserError(
            f"{where} holds {len(found)} weights, and the training set has {len(source)} samples",
            "give one weight a training sample, in its order",
        )
    bad = np.flatnonzero(~np.isfinite(found) | (found < 0))
    if len(bad):
        raise UserError(
            f"the weight of sample {bad[0]} in {where} is {found[bad[0]]:g}",
            "weights are finite and at least 0",
        )
    if not found.any():
        raise UserError(f"every weight in {where} is 0", "give at least one sample a weight")
    return found


def _read(path: str) -> np.ndarray:
    """(n,) float64 from a .npy file, or from text with one number a line."""
    file = Path(path).expanduser()
    try:
        if file.suffix == ".npy":
            return np.load(file, allow_pickle=False).astype(np.float64)
        return np.array([float(line) for line in file.read_text().split()], np.float64)
    except (OSError, ValueError) as error:
        raise UserError(
            f"data.sample_weights: cannot read {path}: {error}",
            "give a .npy file, or text with one number a line",
        ) from error
