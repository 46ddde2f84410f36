"""The training loops that loop_overhead.py compares, each as its users write it, over the same model and data.

Equal in all: weights, memory layout, optimizer, batches drawn from memory in one go, DDP's gradient buffers, precision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from turns import Stopwatch

from paceline.config.load import load_config
from paceline.data.sources.base import VectorSource
from paceline.loop.setup import Objects
from paceline.loop.stopping import StopRequest
from paceline.loop.train import run
from paceline.records.folder import RunFolder

PACELINE, PLAIN, AGAIN = "paceline", "hand-written", "hand-written, again"
LIGHTNING, ACCELERATE = "lightning", "accelerate"
NUM_CLASSES, NUM_IMAGES, SEED = 10, 512, 0
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 5e-4
LOG_EVERY = 50


@dataclass(frozen=True)
class Case:
    """What is measured in one set of rank processes.

    threads: of a rank; 0: as Paceline sets them. batch: samples a rank. rounds: in each, every loop takes `steps`.
    """

    model: str
    num_ranks: int
    threads: int
    batch: int
    image_size: int
    rounds: int
    steps: int
    warmup: int

    @property
    def num_batches(self) -> int:
        """One more than is timed: a step ends where the next batch is asked for."""
        return self.warmup + self.rounds * self.steps + 1

    @property
    def num_samples(self) -> int:
        return self.num_batches * self.batch * self.num_ranks


class Images(VectorSource, Dataset[Any]):
    """Random images in memory, fetched a batch at a time by Paceline and by torch's DataLoader alike."""

    num_classes = NUM_CLASSES

    def __init__(self, case: Case, next_batch: Callable[[], None]) -> None:
        generator = np.random.default_rng(SEED)
        shape = (NUM_IMAGES, 3, case.image_size, case.image_size)
        self._images = generator.standard_normal(shape, dtype=np.float32)
        self._labels = generator.integers(NUM_CLASSES, size=NUM_IMAGES)
        self._case = case
        self._next_batch = next_batch

    def __len__(self) -> int:
        return self._case.num_samples

    def load_many(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        if len(indices) == self._case.batch:  # and no probe of what a sample looks like
            self._next_batch()
        rows = np.asarray(indices) % NUM_IMAGES
        return {"input": self._images[rows], "target": self._labels[rows]}

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        rows = self.load_many(np.asarray(indices))
        return torch.from_numpy(rows["input"]), torch.from_numpy(rows["target"])


def bare(image_size: int) -> nn.Module:
    """Next to no work: what remains of a step is the loop's own."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, NUM_CLASSES))


def resnet18(image_size: int) -> nn.Module:
    return torchvision.models.resnet18(num_classes=NUM_CLASSES)


MODELS: dict[str, Callable[[int], nn.Module]] = {"resnet18": resnet18, "bare": bare}


def seeded_model(case: Case) -> nn.Module:
    torch.manual_seed(SEED)
    model = MODELS[case.model](case.image_size)
    watch_passes(model)
    return model


COMMON = Stopwatch()  # of this rank, over all its loops: they run one at a time


def watch_passes(model: nn.Module) -> None:
    """Measures the model's forward, and its backward up to the gradient that comes last: that of the first weight."""

    def stop(module: nn.Module, inputs: Any, output: Tensor) -> None:
        COMMON.stop()
        output.register_hook(COMMON.start)

    model.register_forward_pre_hook(COMMON.start)
    model.register_forward_hook(stop)
    next(model.parameters()).register_post_accumulate_grad_hook(COMMON.stop)


def watch_optimizers() -> None:
    """Measures every optimizer's step. Lightning runs the passes in it: what it adds there is not seen as its own."""
    register_optimizer_step_pre_hook(COMMON.start)
    register_optimizer_step_post_hook(COMMON.stop)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(),
        lr=LEARNING_RATE,
        momentum=MOMENTUM,
        nesterov=True,
        weight_decay=WEIGHT_DECAY,
        fused=True,
    )


def make_loader(data: Images, case: Case, device: torch.device, **more: Any) -> DataLoader[Any]:
    pin = device.type == "cuda"
    return DataLoader(
        data, batch_size=case.batch, drop_last=True, collate_fn=as_is, pin_memory=pin, **more
    )


def as_is(batch: Any) -> Any:
    return batch


def run_plain(
    case: Case, device: torch.device, rank: int, folder: Path, next_batch: Callable[[], None]
) -> None:
    """What one writes by hand: DDP where there are several ranks, the loss read now and then, nothing else."""
    model = seeded_model(case).to(device).train()
    optimizer = make_optimizer(model)
    if case.num_ranks > 1:
        model = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )
    data = Images(case, next_batch)
    sampler = DistributedSampler(data, case.num_ranks, rank, seed=SEED)
    losses = []
    for step, (images, labels) in enumerate(make_loader(data, case, device, sampler=sampler)):
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % LOG_EVERY == 0:
            losses.append(loss.item())


def run_paceline(
    case: Case, device: torch.device, rank: int, folder: Path, next_batch: Callable[[], None]
) -> None:
    run_folder = RunFolder(folder / "paceline")
    run_folder.create()
    config = load_config(
        flags={
            "device": device.type,
            "seed": SEED,
            "data.workers": 0,
            "train.epochs": 1,
            "train.global_batch": case.batch * case.num_ranks,
            "optim.base_lr": LEARNING_RATE,
            "optim.lr_scaling": "none",
            "optim.momentum": MOMENTUM,
            "optim.weight_decay": WEIGHT_DECAY,
            "parallel.ranks": case.num_ranks,
            "model.channels_last": False,  # as in the other loops: it is the loop that is compared
            "checkpoint.every_epochs": 0,
        }
    ).config
    objects = Objects(model=partial(seeded_model, case), data=Images(case, next_batch))
    run(run_folder, config, stop=StopRequest(), objects=objects)


def run_lightning(
    case: Case, device: torch.device, rank: int, folder: Path, next_batch: Callable[[], None]
) -> None:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = seeded_model(case)

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            images, labels = batch
            return cross_entropy(self.model(images), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.model)

    on_gpus = device.type == "cuda"
    trainer = lightning.Trainer(
        accelerator="gpu" if on_gpus else "cpu",
        devices=[device.index] if on_gpus and case.num_ranks == 1 else case.num_ranks,
        strategy=DDPStrategy(gradient_as_bucket_view=True) if case.num_ranks > 1 else "auto",
        max_epochs=1,
        barebones=True,  # Lightning's own mode for measuring its overhead: no logger, checkpoints, progress bar
        default_root_dir=folder,
    )
    data = Images(case, next_batch)
    trainer.fit(Module(), make_loader(data, case, device, shuffle=True))


def run_accelerate(
    case: Case, device: torch.device, rank: int, folder: Path, next_batch: Callable[[], None]
) -> None:
    from accelerate import Accelerator, DistributedDataParallelKwargs

    accelerator = Accelerator(
        cpu=device.type == "cpu",
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )
    model = seeded_model(case).train()
    data = Images(case, next_batch)
    model, optimizer, loader = accelerator.prepare(
        model, make_optimizer(model), make_loader(data, case, device, shuffle=True)
    )
    losses = []
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        if step % LOG_EVERY == 0:
            losses.append(loss.item())


# Paceline stands first and ends last: it makes the process group that all share, and leaves it.
LOOPS: dict[str, Callable[..., None]] = {
    PACELINE: run_paceline,
    PLAIN: run_plain,
    AGAIN: run_plain,
    LIGHTNING: run_lightning,
    ACCELERATE: run_accelerate,
}
