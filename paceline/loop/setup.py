"""Builds what a run works with, in the order: devices, data, model, strategy, optimizer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoint import load_weights
from paceline.config.schema import RunConfig
from paceline.data.augment import Augment
from paceline.data.batch import Batch
from paceline.data.bundle import Data, bundle, load_data
from paceline.data.generators import seed_generators
from paceline.data.loader import Loader, StepBatches
from paceline.data.mixing import Mixing, make_mixing
from paceline.data.prefetch import Item, to_device
from paceline.data.sampling import Sampling
from paceline.data.sources import may_download
from paceline.data.sources.base import Source
from paceline.data.sources.functions import as_source
from paceline.errors import UserError
from paceline.loop.card import Card, make_card
from paceline.loop.evaluate import Watched, watched_metric
from paceline.loop.room import Room
from paceline.loop.step import Training
from paceline.models.losses.mixed import over_mixed_targets
from paceline.models.objective import num_outputs, task_of
from paceline.models.registry import make_spec
from paceline.models.spec import ModelSpec
from paceline.models.weights import fit_weights
from paceline.optim.averaging import Average
from paceline.optim.build import make_optimizer
from paceline.optim.schedule import Schedule
from paceline.optim.update import Update
from paceline.parallel.contract import Carried
from paceline.parallel.place import Place, Split, split_batch
from paceline.parallel.precision import (
    choose_precision,
    make_loss_scale,
    parameter_dtype,
    set_matmul,
)
from paceline.parallel.registry import choose_strategy, get_strategy
from paceline.parallel.world import World, choose_device
from paceline.records.phases import PhaseClock


@dataclass(frozen=True)
class Objects:
    """What a user gave from Python instead of by name."""

    model: Any = None
    data: Any = None
    eval_data: Any = None
    augment: Any = None
    loss: Any = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> tuple[str, ...]:
        """The names of those that there are."""
        return tuple(
            name for name, value in vars(self).items() if value is not None and value != {}
        )


@dataclass(frozen=True)
class Prepared:
    """card: what the weights need to be used."""

    config: RunConfig
    place: Place
    split: Split
    data: Data
    spec: ModelSpec
    training: Training
    loader: Loader
    watched: Watched
    mixing: Mixing | None
    card: Card
    notes: list[str]

    def training_steps(self, epoch: int, position: int) -> Iterator[StepBatches]:
        """The steps of an epoch from a position on: this rank's part on its device, normalized and mixed."""
        steps = self.on_device(self.loader.epoch(epoch, position))
        return steps if self.mixing is None else self._mixed(steps, self.mixing)

    def _mixed(self, steps: Iterator[StepBatches], mixing: Mixing) -> Iterator[StepBatches]:
        for step in steps:
            with self.training.clock.phase("copy"):
                mixed = mixing.step(
                    step,
                    first=self.place.data_rank * self.split.accumulation,
                    rows=self.split.rows,
                    group=self.split.rows // self.place.devices_per_process,
                )
            yield mixed

    def on_device(self, items: Iterator[Item]) -> Iterator[Item]:
        """The loader's items on this rank's device, normalized; what that costs is the phase `copy`."""

        def timed(batch: Batch) -> Batch:
            with self.training.clock.phase("copy"):
                return self.data.prepare(batch)

        return to_device(items, self.training.world.device, timed)


def num_devices(config: RunConfig, device: torch.device | None = None) -> int:
    """How many devices `parallel.ranks` means here: every GPU, or 2 CPU ranks where there is none."""
    if config.parallel.strategy == "single":
        return config.parallel.ranks or 1
    on_gpus = config.device != "cpu" and torch.cuda.is_available()
    found = torch.cuda.device_count() if on_gpus else 2
    if on_gpus and config.parallel.ranks > found:
        raise UserError(
            f"parallel.ranks = {config.parallel.ranks}, and there are {found} GPUs here",
            f"use --ranks {found} or fewer, or --device cpu",
        )
    return config.parallel.ranks or found


def num_processes(config: RunConfig) -> int:
    """How many ranks to launch; refuses what cannot work before anything is launched."""
    place = _place(config)
    split_batch(config.train.global_batch, config.parallel.micro_batch, place)
    return place.num_processes


def share_of_device(config: RunConfig) -> int:
    """Samples of a full global batch that a device gets."""
    place = _place(config)
    return config.train.global_batch // (place.num_data_ranks * place.devices_per_process)


def _place(config: RunConfig) -> Place:
    choose_device(config.device)
    devices = num_devices(config)
    name = choose_strategy(config.parallel.strategy, devices)
    return get_strategy(name).place(config.parallel, devices, 0)


def resolve(config: RunConfig, num_ranks: int) -> RunConfig:
    """`config` with `auto` settled for this many launched ranks (1: what one process uses is its own choice)."""
    devices = num_ranks if num_ranks > 1 else num_devices(config)
    name = choose_strategy(config.parallel.strategy, devices)
    if name != "dp" and devices != num_ranks:
        devices = num_ranks
        name = choose_strategy(config.parallel.strategy, devices)
    return dataclasses.replace(
        config,
        parallel=dataclasses.replace(config.parallel, strategy=name, ranks=devices),
        precision=choose_precision(config.precision, choose_device(config.device)),
    )


def prepare(config: RunConfig, world: World, objects: Objects) -> Prepared:
    """config: already resolved."""
    if config.parallel.micro_batch == "auto":
        raise UserError(
            "parallel.micro_batch = 'auto' is found by ranks that Paceline starts itself",
            "start with `paceline train`, or give a number",
        )
    seed_generators(config.seed, world.rank)  # for a user's code that draws in this process
    set_determinism(config)
    set_matmul(config.precision)
    strategy = get_strategy(config.parallel.strategy)
    place = strategy.place(config.parallel, config.parallel.ranks, world.rank)
    if place.num_processes != world.num_ranks:
        raise UserError(
            f"parallel.strategy = {config.parallel.strategy!r} runs in {place.num_processes} process,"
            f" and {world.num_ranks} ranks were launched",
            "start one process, or use --strategy ddp",
        )
    split = split_batch(config.train.global_batch, config.parallel.micro_batch, place)
    data = _load_data(config, objects, world)
    loader = make_loader(
        config,
        world,
        place,
        split,
        data.train,
        data.evaluation,
        augment=data.augment,
        sampling=data.sampling,
    )
    spec = make_spec(
        config,
        channels=data.channels,
        num_classes=data.num_classes,
        target=data.target,
        class_counts=data.class_counts,
        image_size=data.image_size,
        model=objects.model,
        loss=objects.loss,
        metrics=objects.metrics,
    )
    mixing = make_mixing(config.data, config.seed)
    if mixing is not None:
        _check_groups(split.rows // place.devices_per_process)
        spec = dataclasses.replace(spec, loss=over_mixed_targets(spec.loss))
    watched = watched_metric(config.train, spec)
    clock = PhaseClock(world.device)
    carried = strategy.carry(spec, config, world, clock)
    notes = _load_first_weights(config, world, spec, carried)
    training = make_training(
        config, world, place, split, spec, carried, clock, loader.steps_per_epoch
    )
    task = task_of(config.train.loss, data.target, data.num_classes)
    outputs = num_outputs(task, data.target, data.num_classes)
    card = make_card(data, task, outputs, objects.given)
    return Prepared(
        config, place, split, data, spec, training, loader, watched, mixing, card, notes
    )


def make_loader(
    config: RunConfig,
    world: World,
    place: Place,
    split: Split,
    train: Source,
    evaluation: Source | None,
    *,
    augment: Augment | None = None,
    sampling: Sampling | None = None,
) -> Loader:
    """The loader of this rank's share, with the settings that `data` has for it."""
    return Loader(
        train,
        evaluation=evaluation,
        augment=augment,
        seed=config.seed,
        data_rank=place.data_rank,
        num_data_ranks=place.num_data_ranks,
        global_batch=config.train.global_batch,
        micro_batch=split.rows,
        workers=config.data.workers,
        prefetch=config.data.prefetch,
        on_bad_sample=config.data.on_bad_sample,
        pin_memory=world.device.type == "cuda",
        cores=torch.get_num_threads(),  # this rank's share of the machine
        num_local_ranks=world.local_num_ranks,
        sampling=sampling,
    )


def make_training(
    config: RunConfig,
    world: World,
    place: Place,
    split: Split,
    spec: ModelSpec,
    carried: Carried,
    clock: PhaseClock,
    steps_per_epoch: int,
) -> Training:
    """The optimizer of a carried model, and what else a step works with."""
    blocks = [name for part in carried.parts for name in spec.blocks(part)]
    optimizer = carried.build_optimizer(
        functools.partial(make_optimizer, config.optim, finetune=config.finetune, blocks=blocks)
    )
    total_steps = config.train.epochs * steps_per_epoch
    if config.train.max_steps:
        total_steps = min(total_steps, config.train.max_steps)
    return Training(
        config=config,
        world=world,
        clock=clock,
        carried=carried,
        optimizer=optimizer,
        schedule=Schedule(config.optim, config.train.global_batch, steps_per_epoch, total_steps),
        loss_scale=make_loss_scale(config.precision, world.device),
        average=Average(carried.named_parameters(), config.optim.ema_decay)
        if config.optim.ema_decay
        else None,
        room=Room(config.memory, split, place),
        update=Update(optimizer),
    )


def _check_groups(size: int) -> None:
    if size == 1:
        raise UserError(
            "data.mixup or data.cutmix pairs samples within a micro-batch, which is one sample here",
            "set parallel.micro_batch to 2 or more, or train.global_batch higher",
        )


def _load_first_weights(
    config: RunConfig, world: World, spec: ModelSpec, carried: Carried
) -> list[str]:
    """Loads what `model.weights` or `model.pretrained` names, if any; returns what the user should know of it."""
    if config.model.weights:
        values: Mapping[str, Tensor] = load_weights(Path(config.model.weights))
    elif spec.pretrained is not None:
        values = world.first_on_machine("pretrained", spec.pretrained)
    else:
        return []
    wanted = {n: v for part in carried.parts for n, v in part.state_dict().items()}
    head = [name for part in carried.parts for name in spec.head(part)]
    fitted, notes = fit_weights(values, wanted, head, config.model.head)
    carried.load_tensors({f"model/{name}": value for name, value in fitted.items()}, None)
    return notes


def _load_data(config: RunConfig, objects: Objects, world: World) -> Data:
    dtype = parameter_dtype(config.precision)
    if objects.data is None:
        load = functools.partial(
            load_data, config.data, config.seed, dtype=dtype, augment=objects.augment
        )
        return world.first_on_machine("data", load) if may_download(config.data) else load()
    train, evaluation = as_source(objects.data, "data=", config.data), None
    if objects.eval_data is not None:
        evaluation = as_source(objects.eval_data, "eval_data=", config.data, augmented=False)
    return bundle(config.data, config.seed, train, evaluation, dtype=dtype, augment=objects.augment)


def set_determinism(config: RunConfig) -> None:
    """cuBLAS also needs CUBLAS_WORKSPACE_CONFIG, which the launcher sets before CUDA starts."""
    torch.use_deterministic_algorithms(config.deterministic)
    torch.backends.cudnn.deterministic = config.deterministic
    torch.backends.cudnn.benchmark = not config.deterministic
