"""Makes one micro-batch of sample indices: loads, augments, stacks. The same code in a rank and in a loader process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from paceline.data.augment import Augment, BadAugment, NoAugment
from paceline.data.batch import Batch, map_leaves
from paceline.data.draws import Draws
from paceline.data.generators import generators_kept, seed_generators
from paceline.data.sources.base import BadSample, Source, VectorSource, check_labels
from paceline.errors import UserError

_MOST_BAD_AT_START = 100  # unreadable samples that the search for a template passes over
_TRAINING, _EVALUATION = 0, 1  # keep the seeds of users' transforms apart


@dataclass(frozen=True)
class Task:
    """One micro-batch to make.

    epoch: of training; None for evaluation samples, which are not augmented. draws: keys of what is drawn for each
    sample, where they are not the indices.
    """

    indices: np.ndarray
    epoch: int | None
    draws: np.ndarray | None = None

    @property
    def keys(self) -> np.ndarray:
        return self.indices if self.draws is None else self.draws


@dataclass(frozen=True)
class Loaded:
    """A micro-batch on its way to a `Batch`. Only `data` are tensors, since a loader process shares each on its own."""

    data: Any
    indices: np.ndarray
    weights: np.ndarray

    def pin_memory(self) -> Loaded:
        """Called by torch's DataLoader, in its own thread."""
        return replace(self, data=pytree.tree_map_only(Tensor, Tensor.pin_memory, self.data))

    def shared(self) -> Loaded:
        """In shared memory. Raises RuntimeError where there is too little of it."""

        def share(tensor: Tensor) -> Tensor:
            return tensor.contiguous().share_memory_()

        return replace(self, data=pytree.tree_map_only(Tensor, share, self.data))

    def batch(self) -> Batch:
        weights = torch.from_numpy(self.weights)
        num_real = int(np.count_nonzero(self.weights))
        return Batch(self.data, torch.from_numpy(self.indices), weights, num_real)


@dataclass(frozen=True, kw_only=True)
class Assembler:
    """What is needed to make any micro-batch of a run; is sent to loader processes.

    skip_bad: an unreadable sample gets weight 0 and the data of a good one, so that BatchNorm sees an image.
    """

    train: Source
    evaluation: Source | None
    augment: Augment
    seed: int
    skip_bad: bool

    def __call__(self, task: Task) -> Loaded:
        if not self._source(task).draws_globally:
            return self._assemble(task)
        with generators_kept():
            return self._assemble(task)

    def filler(self) -> Loaded:
        """One row of zeros with index -1 and weight 0, shaped like a training sample."""
        return Loaded(_blank(self.template().data, 1), np.array([-1]), np.zeros(1, np.float32))

    def template(self) -> Loaded:
        """The first training sample that can be read, as a micro-batch of one."""
        lone = replace(self, skip_bad=False)
        tries = min(len(self.train), _MOST_BAD_AT_START)
        for index in range(tries):
            try:
                return lone(Task(np.array([index]), 0))
            except UnreadableSample:
                if not self.skip_bad:
                    raise
        raise UserError(
            f"none of the first {tries} samples of {self.train.name} can be read",
            'see why with data.on_bad_sample = "error"',
        )

    def _source(self, task: Task) -> Source:
        if task.epoch is not None:
            return self.train
        assert self.evaluation is not None, "there is no evaluation source"
        return self.evaluation

    def _assemble(self, task: Task) -> Loaded:
        source = self._source(task)
        data, weights = self._rows(source, task)
        stacked = not isinstance(self.augment, NoAugment) and not self.augment.before_stacking
        if task.epoch is not None and stacked:
            draws = Draws(self.seed, task.epoch, task.keys)
            data = _with_input(
                data, 4, lambda images: self._augmented(images, draws, task.indices, source)
            )
        _check_targets(data, task.indices, source)
        return Loaded(map_leaves(_as_tensor, data), task.indices, weights)

    def _rows(self, source: Source, task: Task) -> tuple[Any, np.ndarray]:
        """(pytree with the sample as first dimension, weights)."""
        one_by_one = task.epoch is not None and self.augment.before_stacking
        if isinstance(source, VectorSource) and not one_by_one:
            try:
                return source.load_many(task.indices), np.ones(len(task.indices), np.float32)
            except BadSample:
                pass  # one by one, the bad ones are told from the good ones
        samples = [self._sample(source, task, row) for row in range(len(task.indices))]
        weights = np.array([sample is not None for sample in samples], np.float32)
        good = next((sample for sample in samples if sample is not None), None)
        if good is None:
            return _blank(self._stand_in(task, source), len(samples)), weights
        return stack([good if s is None else s for s in samples], task.indices, source), weights

    def _stand_in(self, task: Task, source: Source) -> Any:
        """A micro-batch of the right shapes, where no sample of this one can be read."""
        if task.epoch is not None:
            return self.template().data
        for index in range(len(source)):
            sample = self._sample(source, Task(np.array([index]), None), 0)
            if sample is not None:
                return stack([sample], task.indices, source)
        raise UserError(
            f"no sample of {source.name} can be read", 'see why with data.on_bad_sample = "error"'
        )

    def _sample(self, source: Source, task: Task, row: int) -> Any | None:
        index = int(task.indices[row])
        if source.draws_globally:
            which = _EVALUATION if task.epoch is None else _TRAINING
            seed_generators(self.seed, which, task.epoch or 0, int(task.keys[row]))
        try:
            sample = source.load(index)
        except BadSample as e:
            if self.skip_bad:
                return None
            raise UnreadableSample(
                f"cannot read {e}",
                'data.on_bad_sample = "skip" leaves such samples out and counts them',
            ) from e
        if task.epoch is None or not self.augment.before_stacking:
            return sample
        this = task.indices[row : row + 1]
        draws = Draws(self.seed, task.epoch, task.keys[row : row + 1])
        return _with_input(
            sample, 3, lambda image: self._augmented(image[None], draws, this, source)[0]
        )

    def _augmented(
        self, images: np.ndarray, draws: Draws, indices: np.ndarray, source: Source
    ) -> np.ndarray:
        try:
            return self.augment(images, draws)
        except BadAugment as e:
            raise UserError(
                f"data.augment: sample {indices[e.row]} of {source.name}: {e.what}", e.hint
            ) from e


class UnreadableSample(UserError):
    """A sample could not be read, and none may be skipped."""


def _with_input(data: Any, num_dims: int, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """The data with its `input` changed, where that is an image or a batch of them."""
    image = data.get("input") if isinstance(data, dict) else None
    if isinstance(image, Tensor):
        image = image.numpy()
    if not isinstance(image, np.ndarray) or image.ndim != num_dims:
        found = f"a {type(data).__name__} without an array `input`"
        if isinstance(image, np.ndarray):
            found = f"an input of shape {image.shape[num_dims - 3 :]}"
        raise UserError(
            f"data.augment needs inputs of shape (channels, height, width), and finds {found}",
            'set data.augment = "none"',
        )
    return {**data, "input": change(image)}


def _check_targets(data: Any, indices: np.ndarray, source: Source) -> None:
    targets = data.get("target") if isinstance(data, dict) else None
    if source.num_classes == 0 or targets is None:
        return
    labels = targets.numpy() if isinstance(targets, Tensor) else np.asarray(targets)
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        check_labels(labels, indices, source.num_classes, source.name)


def _blank(data: Any, num_rows: int) -> Any:
    return pytree.tree_map(
        lambda rows: torch.zeros((num_rows, *rows.shape[1:]), dtype=rows.dtype), data
    )


def stack(samples: Sequence[Any], indices: np.ndarray, source: Source) -> Any:
    """One pytree of tensors from a pytree a sample. indices: for messages."""
    leaves, structures = zip(*(pytree.tree_flatten(s) for s in samples), strict=True)
    for row, structure in enumerate(structures):
        if structure != structures[0]:
            raise UserError(
                f"samples {indices[0]} and {indices[row]} of {source.name} differ in structure: "
                f"{_kinds(samples[0])} and {_kinds(samples[row])}",
                "give every sample the same keys",
            )
    columns = [
        _stack_leaf([_as_tensor(x) for x in column], indices, source)
        for column in zip(*leaves, strict=True)
    ]
    return pytree.tree_unflatten(columns, structures[0])


def _kinds(sample: Any) -> str:
    if isinstance(sample, dict):
        return f"keys {', '.join(map(repr, sample))}"
    length = f" of {len(sample)}" if isinstance(sample, (tuple, list)) else ""
    return f"{type(sample).__name__}{length}"


def _stack_leaf(rows: list[Tensor], indices: np.ndarray, source: Source) -> Tensor:
    for row, tensor in enumerate(rows):
        if tensor.shape != rows[0].shape or tensor.dtype != rows[0].dtype:
            raise UserError(
                f"samples {indices[0]} and {indices[row]} of {source.name} differ: "
                f"{tuple(rows[0].shape)} {rows[0].dtype} and {tuple(tensor.shape)} {tensor.dtype}",
                "bring every sample to one shape and dtype, for images by a resize or a crop",
            )
    return torch.stack(rows)


def _as_tensor(value: Any) -> Tensor:
    """Whole numbers become int64, other Python numbers float32."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float32)
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as e:
        raise UserError(
            f"a sample holds a {type(value).__name__}, which is no array, tensor or number",
            "return arrays, tensors and numbers only",
        ) from e
