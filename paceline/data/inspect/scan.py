"""Looks through a data set: counts, sizes, channels, and the faults that training would not tell of.

One sample is in memory at a time, a few on threads, and some thirty bytes of each are kept. The picture: `sheet.py`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from paceline.data.generators import generators_kept, seed_generators
from paceline.data.sources.base import BadSample, Source
from paceline.data.workers import available_cores

Progress = Callable[[int, int], None]  # of how many of how many were read

MOST_LISTED = (
    100  # unreadable files, duplicates, sizes: named one by one up to here, and counted beyond
)
_AHEAD = 4  # samples a thread reads before they are asked for
_NO_LABEL = -1


@dataclass(frozen=True)
class Facts:
    """What is kept of one sample. digest: of its input's bytes; equal inputs have equal ones."""

    shape: tuple[int, ...]
    dtype: str
    digest: int
    label: int
    mean: np.ndarray | None
    square: np.ndarray | None
    low: float
    high: float


@dataclass
class Found:
    """What was found in a source. sampled: read indices, ascending; digests, labels: of these, in this order.

    unreadable: (index, what) of the first; num_unreadable counts all.
    """

    source: Source
    sampled: np.ndarray
    digests: np.ndarray
    labels: np.ndarray
    shapes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    low: float = np.inf
    high: float = -np.inf
    unreadable: list[tuple[int, str]] = field(default_factory=list)
    num_unreadable: int = 0
    _sums: np.ndarray | None = None
    _squares: np.ndarray | None = None
    _num_images: int = 0

    def add(self, place: int, facts: Facts) -> None:
        self.digests[place], self.labels[place] = facts.digest, facts.label
        self.shapes[facts.shape] += 1
        self.dtypes[facts.dtype] += 1
        self.low, self.high = min(self.low, facts.low), max(self.high, facts.high)
        if facts.mean is None or facts.square is None:
            return
        if self._sums is None or self._squares is None:
            self._sums, self._squares = np.zeros_like(facts.mean), np.zeros_like(facts.mean)
        if self._sums.shape == facts.mean.shape:
            self._sums += facts.mean
            self._squares += facts.square
            self._num_images += 1

    @property
    def readable(self) -> np.ndarray:
        """Places of the samples that could be read."""
        return np.flatnonzero(self.digests != 0)

    @property
    def mean_and_std(self) -> tuple[list[float], list[float]] | None:
        """By channel, each image with the same weight, in units of the stored values times normalization's scale."""
        if self._sums is None or self._squares is None:
            return None
        mean = self._sums / self._num_images
        std = np.sqrt(np.maximum(self._squares / self._num_images - mean**2, 0))
        scale = self.source.normalization.scale if "uint8" in self.dtypes else 1.0
        return (mean * scale).tolist(), (std * scale).tolist()

    def duplicates(self) -> list[list[int]]:
        """Indices of samples with equal inputs, in groups."""
        readable = self.readable
        order = readable[np.argsort(self.digests[readable], kind="stable")]
        ends = np.flatnonzero(np.diff(self.digests[order])) + 1
        groups = (group for group in np.split(order, ends) if len(group) > 1)
        return sorted(self.sampled[group].tolist() for group in groups)

    def label_of(self, index: int) -> int:
        return int(self.labels[np.searchsorted(self.sampled, index)])

    def class_counts(self) -> np.ndarray:
        """Samples of each class: of all where the source knows its labels, else of those read; empty where none."""
        known = self.source.labels
        labels = known if known is not None else self.labels[self.labels != _NO_LABEL]
        return np.bincount(labels, minlength=self.source.num_classes) if len(labels) else labels


def look_through(source: Source, seed: int, limit: int, progress: Progress) -> Found:
    """limit: how many samples to read, evenly spread; 0: all."""
    total = len(source)
    count = min(limit or total, total)
    sampled = np.arange(count, dtype=np.int64) * total // count
    found = Found(source, sampled, np.zeros(count, np.uint64), np.full(count, _NO_LABEL, np.int64))
    for place, facts in enumerate(_read(source, seed, sampled)):
        if isinstance(facts, BadSample):
            found.num_unreadable += 1
            if len(found.unreadable) < MOST_LISTED:
                found.unreadable.append((facts.index, str(facts)))
        else:
            found.add(place, facts)
        progress(place + 1, count)
    return found


def in_both(train: Found, evaluation: Found) -> list[tuple[int, int]]:
    """(training, evaluation) indices of equal inputs, one pair for each evaluation sample that is also trained on."""
    first = dict(zip(train.digests[train.readable].tolist(), train.readable.tolist(), strict=True))
    places = evaluation.readable[np.isin(evaluation.digests[evaluation.readable], train.digests)]
    return [
        (int(train.sampled[first[int(evaluation.digests[p])]]), int(evaluation.sampled[p]))
        for p in places
    ]


def name_of(source: Source, index: int) -> str:
    """A file where the source has files, else the number."""
    path = getattr(source, "path", None)
    if path is None:
        return f"sample {index}"
    found = path(index)
    text = found.decode("utf-8", "backslashreplace") if isinstance(found, bytes) else str(found)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _read(source: Source, seed: int, indices: np.ndarray) -> Iterator[Facts | BadSample]:
    """In the order of `indices`. A source that draws from the global generators is read on one thread."""

    def one(index: int) -> Facts | BadSample:
        try:
            return facts_of(source.load_whole(index))
        except BadSample as bad:
            return bad

    if source.draws_globally:
        with generators_kept():
            for index in indices.tolist():
                seed_generators(seed, 0, 0, index)
                yield one(index)
        return
    cores = available_cores()
    with ThreadPoolExecutor(cores) as pool:
        todo = iter(indices.tolist())
        ahead = [pool.submit(one, index) for index in itertools.islice(todo, cores * _AHEAD)]
        while ahead:
            yield ahead.pop(0).result()
            ahead += [pool.submit(one, index) for index in itertools.islice(todo, 1)]


def facts_of(sample: Any) -> Facts:
    data = sample if isinstance(sample, dict) else {"input": sample}
    pixels = as_array(data.get("input"))
    digest = hashlib.blake2b(np.ascontiguousarray(pixels).tobytes(), digest_size=8)
    digest.update(repr((pixels.shape, pixels.dtype.str)).encode())
    label = as_array(data.get("target"))
    is_label = label.ndim == 0 and label.dtype.kind in "iu"
    mean, square = None, None
    if pixels.ndim == 3:
        flat = pixels.reshape(len(pixels), -1).astype(np.float64)
        mean, square = flat.mean(axis=1), (flat * flat).mean(axis=1)
    is_number = pixels.dtype.kind in "biuf" and pixels.size > 0
    return Facts(
        shape=pixels.shape,
        dtype=str(pixels.dtype),
        digest=max(1, int.from_bytes(digest.digest(), "little")),  # 0 is kept for unreadable ones
        label=int(label) if is_label else _NO_LABEL,
        mean=mean,
        square=square,
        low=float(pixels.min()) if is_number else np.inf,
        high=float(pixels.max()) if is_number else -np.inf,
    )


def as_array(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value)


def sides(shapes: Counter[tuple[int, ...]]) -> dict[str, Any]:
    """Widths and heights of images: smallest and largest by area, median, and the commonest."""
    images = {s[-2:]: 0 for s in shapes if len(s) == 3}
    for shape, count in shapes.items():
        if len(shape) == 3:
            images[shape[-2:]] += count
    if not images:
        return {}
    by_area = sorted(images, key=lambda side: (side[0] * side[1], side))
    middle = np.searchsorted(np.cumsum([images[s] for s in by_area]), sum(images.values()) / 2)
    most = sorted(images, key=lambda side: (-images[side], side))[:MOST_LISTED]

    def wide_by_high(side: tuple[int, ...]) -> list[int]:
        return [side[1], side[0]]

    return {
        "smallest": wide_by_high(by_area[0]),
        "median": wide_by_high(by_area[min(int(middle), len(by_area) - 1)]),
        "largest": wide_by_high(by_area[-1]),
        "different": len(images),
        "most_common": [[*wide_by_high(side), images[side]] for side in most],
    }


def class_name(names: Sequence[str], label: int) -> str:
    return names[label] if 0 <= label < len(names) else str(label)
