"""`load_data`: from the data settings to everything that a run needs to know of its data."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from paceline.config.schema import DataConfig, RunConfig
from paceline.data.assemble import Assembler
from paceline.data.augment import Augment, NoAugment, build_augment
from paceline.data.augment.base import Context
from paceline.data.augment.notation import as_setting
from paceline.data.batch import Batch
from paceline.data.mixing import check_mixing
from paceline.data.sampling import Sampling, make_sampling
from paceline.data.sources import open_sources
from paceline.data.sources.base import Normalization, Source
from paceline.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data of a run.

    sampling: which training samples an epoch has.
    evaluation: None where there is none. prepare: on the device, before the model; see `Preparation`.
    channels, image_size: of the input, 0 where it is no image, image_size also where it is no square.
    num_classes: 0 where samples have no classes. target: one training sample's, (1, …), and
    input_dtype: of its input, before it is prepared; None where there is none.
    stored_as_bytes: inputs are uint8 before `prepare`.
    fingerprint: changes when a resumed run would see other data. notes: what the user should be told.
    """

    train: Source
    sampling: Sampling
    evaluation: Source | None
    augment: Augment
    prepare: Callable[[Batch], Batch]
    channels: int
    image_size: int
    num_classes: int
    class_names: Sequence[str]
    target: Tensor | None
    stored_as_bytes: bool
    input_dtype: torch.dtype | None
    fingerprint: str
    notes: list[str] = field(default_factory=list)

    @property
    def unit(self) -> dict[str, Any]:
        """What speed is told in, as records hold it."""
        return {"unit": self.train.unit, "units_per_sample": self.train.units_per_sample}

    @property
    def class_counts(self) -> np.ndarray | None:
        """Training samples of each class, where they are known without loading."""
        if self.train.labels is None or not self.num_classes:
            return None
        return np.bincount(self.train.labels, minlength=self.num_classes)


def load_data(
    config: DataConfig, seed: int, *, dtype: torch.dtype = torch.float32, augment: Any = None
) -> Data:
    """What `config` names. dtype: of the model's inputs. seed: for what a user's function draws.

    augment: as in `bundle`.
    """
    if augment is not None:
        config = dataclasses.replace(config, augment=as_setting(augment))
    opened = open_sources(config, seed)
    return bundle(
        config,
        seed,
        opened.train,
        opened.evaluation,
        dtype=dtype,
        notes=opened.notes,
        augment=augment,
    )


def bundle(
    config: DataConfig,
    seed: int,
    train: Source,
    evaluation: Source | None,
    *,
    dtype: torch.dtype = torch.float32,
    notes: Sequence[str] = (),
    augment: Any = None,
) -> Data:
    """The same for sources that are at hand as objects. Loads one sample of each to see its shape.

    augment: instead of `data.augment`: a callable, or a list that may hold some.
    """
    _check(train, evaluation)
    shape = _input_shape(_sample(train, config, seed, NoAugment()))
    written = config.augment if augment is None else augment
    augment = build_augment(written, _context(config, train, shape), auto=train.augment)
    sample = _sample(train, config, seed, augment)
    shape = _input_shape(sample)
    _check_shape(shape, train, config)
    if config.mixup or config.cutmix:
        check_mixing(config, sample)
    if evaluation is not None:
        other = _input_shape(_sample(evaluation, config, seed, NoAugment()))
        if other != shape:
            raise UserError(
                f"inputs have the shape {shape} in training and {other} in evaluation",
                "bring both to one shape, for images with data.image_size or a resize",
            )
    is_image = len(shape) == 3
    sources = [source for source in (train, evaluation) if source is not None]
    sampling = make_sampling(config, train)
    digests = [*(s.digest() for s in sources), *filter(None, [sampling.digest()])]
    digest = hashlib.blake2b("/".join(digests).encode(), digest_size=8)
    return Data(
        train=train,
        sampling=sampling,
        evaluation=evaluation,
        augment=augment,
        prepare=Preparation(train.normalization, dtype),
        channels=shape[0] if is_image else 0,
        image_size=shape[1] if is_image and shape[1] == shape[2] else 0,
        num_classes=train.num_classes,
        class_names=train.class_names,
        target=_leaf(sample, "target"),
        stored_as_bytes=_is_bytes(sample),
        input_dtype=None if (found := _leaf(sample, "input")) is None else found.dtype,
        fingerprint=digest.hexdigest(),
        notes=list(notes),
    )


def _context(config: DataConfig, train: Source, shape: tuple[int, ...]) -> Context:
    """shape: of an input that is not augmented."""
    own = shape[-1] if len(shape) == 3 and shape[-1] == shape[-2] else 0
    normalization = train.normalization
    return Context(
        size=config.image_size or own,
        interpolation=config.interpolation,
        mean=tuple(mean / normalization.scale for mean in normalization.mean),
    )


class Preparation:
    """Makes of a batch what a model takes: images in uint8 are normalized, inputs get the run's dtype.

    Whole numbers of other kinds (tokens, labels, masks) stay. In float64 every floating tensor is widened, so that
    nothing is computed in less. Weights stay float32.
    """

    def __init__(self, normalization: Normalization, dtype: torch.dtype) -> None:
        self._normalization = normalization
        self._dtype = dtype
        self._constants: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, batch: Batch) -> Batch:
        data = batch.data
        if isinstance(data, dict) and isinstance(data.get("input"), Tensor):
            data = {**data, "input": self._input(data["input"])}
        if self._dtype == torch.float64:
            data = pytree.tree_map_only(Tensor, _widened, data)
        return Batch(data, batch.indices, batch.weights, batch.num_real)

    def _input(self, tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return tensor.to(self._dtype)
        if tensor.dtype != torch.uint8 or tensor.ndim < 4:
            return tensor
        factor, offset = self._affine(tensor.device)
        shape = (1, -1) + (1,) * (tensor.ndim - 2)
        return tensor.to(self._dtype).mul_(factor.view(shape)).add_(offset.view(shape))

    def _affine(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """(factor, offset) by channel: value x scale / std - mean / std."""
        if device not in self._constants:
            n = self._normalization
            mean, std = (torch.tensor(v, dtype=torch.float64) for v in (n.mean, n.std))
            pair = (n.scale / std, -mean / std)
            factor, offset = (t.to(device=device, dtype=self._dtype) for t in pair)
            self._constants[device] = (factor, offset)
        return self._constants[device]


def _widened(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _check(train: Source, evaluation: Source | None) -> None:
    for source, what in ((train, "training"), (evaluation, "evaluation")):
        if source is not None and len(source) == 0:
            raise UserError(f"the {what} set ({source.name}) has no samples", "add samples")
    if evaluation is not None and evaluation.num_classes not in (0, train.num_classes):
        raise UserError(
            f"{train.name} has {train.num_classes} classes, and the evaluation set "
            f"({evaluation.name}) has {evaluation.num_classes}",
            "give both the same classes",
        )


def _check_shape(shape: tuple[int, ...], train: Source, config: DataConfig) -> None:
    if config.image_size and shape[1:] != (config.image_size, config.image_size):
        raise UserError(
            f"data.image_size = {config.image_size}, and {train.name} gives inputs of {shape}",
            "resize in the data set, or leave data.image_size at 0",
        )
    num_values = {len(train.normalization.mean), len(train.normalization.std)} - {1}
    if len(shape) == 3 and not num_values <= {shape[0]}:
        raise UserError(
            f"{train.name} is normalized over {max(num_values)} channels, and has {shape[0]}",
            "give as many means and standard deviations as channels, or one",
        )


def sample_of(source: Source, config: RunConfig, name: str) -> Tensor | None:
    """One sample's tensor of that name, (1, …), as the source gives it; None where there is none."""
    return _leaf(_sample(source, config.data, config.seed, NoAugment()), name)


def _sample(source: Source, config: DataConfig, seed: int, augment: Augment) -> Any:
    """The data of one sample, augmented, as a micro-batch of one."""
    assembler = Assembler(
        train=source,
        evaluation=None,
        augment=augment,
        seed=seed,
        skip_bad=config.on_bad_sample == "skip",
    )
    return assembler.template().data


def _input_shape(sample: Any) -> tuple[int, ...]:
    """Of its `input`; () where there is none."""
    found = _leaf(sample, "input")
    return () if found is None else tuple(found.shape[1:])


def _is_bytes(sample: Any) -> bool:
    found = _leaf(sample, "input")
    return found is not None and found.dtype == torch.uint8


def _leaf(sample: Any, name: str) -> Tensor | None:
    found = sample.get(name) if isinstance(sample, dict) else None
    return found if isinstance(found, Tensor) else None
