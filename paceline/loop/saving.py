"""When and what a run saves, and how it goes on from what was saved."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoint import Checkpoint, Store, newest_whole, open_checkpoint
from paceline.config.schema import CheckpointConfig
from paceline.errors import UserError
from paceline.loop.meter import diverged
from paceline.loop.state import Experiment, Progress, generator_tensors, load_generators
from paceline.loop.step import Training
from paceline.parallel.world import World
from paceline.records.writer import RecordWriter


class Saver:
    """Saves the whole state of a run, and records what came of it."""

    def __init__(
        self,
        training: Training,
        progress: Progress,
        experiment: Experiment,
        store: Store,
        records: RecordWriter,
    ) -> None:
        self._training = training
        self._progress = progress
        self._experiment = experiment
        self._store = store
        self._records = records
        self.newest: str | None = None

    def save(self, *, best: bool = False) -> None:
        """Snapshots now; writes in the background where so configured. Called after the same step on every rank."""
        training, progress = self._training, self._progress
        tensors = training.carried.tensors(training.optimizer)
        self._check_finite()
        if training.average is not None:
            tensors |= training.average.tensors()
        if training.loss_scale is not None:
            tensors |= training.loss_scale.tensors()
        tensors |= generator_tensors(training.world.rank, training.world.device)
        self._store.save(progress.step, tensors, self._state(), best=best)
        self.report()

    def _state(self) -> dict[str, Any]:
        config = self._training.config
        return {
            "progress": self._progress.to_json(),
            "experiment": asdict(self._experiment),
            "ranks": self._training.world.num_ranks,
            "strategy": config.parallel.strategy,
            "micro_batch": config.parallel.micro_batch,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }

    def _check_finite(self) -> None:
        """A checkpoint is one to go back to: weights that are not finite must never become one."""
        training, step = self._training, self._progress.step
        values = [p for _, p in training.carried.named_parameters()]
        norms = torch.stack(torch._foreach_norm(values))
        if not bool(torch.isfinite(norms).all()):
            lr = training.schedule.learning_rate(step - 1)
            raise diverged(
                "the weights are not finite", step, training.world.rank, lr, self.last_good()
            )

    def report(self) -> None:
        """Records the saves that have ended since the last call."""
        for saved in self._store.finished():
            path = f"checkpoints/{saved.path.name}"
            if saved.ok:
                self.newest = path
            self._records.write(
                "checkpoint",
                step=saved.step,
                path=path,
                seconds=saved.seconds,
                bytes=saved.bytes,
                ok=saved.ok,
                error=saved.error,
            )

    def last_good(self) -> str | None:
        """The newest checkpoint, with the one that is being written; every rank asks or none does."""
        self._store.wait()
        self.report()
        return self.newest

    def finish(self) -> None:
        self.last_good()
        self._store.close()


def is_due(config: CheckpointConfig, step: int) -> bool:
    return bool(config.every_steps) and step % config.every_steps == 0


def find_checkpoint(folder: Path, world: World) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint, chosen by rank 0 for all, and what is wrong with newer ones."""
    found: tuple[Path | None, list[str]] = (None, [])
    if world.rank == 0:
        found = newest_whole(folder)
    path, damaged = world.broadcast(found)
    if path is None and damaged:
        raise UserError(
            f"no checkpoint in {folder} is whole: {'; '.join(damaged)}",
            f"restore one, or remove {folder} to start from the beginning",
        )
    if path is None:
        return None, []
    return open_checkpoint(path, verify=False), damaged


def restore(
    checkpoint: Checkpoint, training: Training, progress: Progress, experiment: Experiment
) -> list[str]:
    """Puts a checkpoint into `training` and `progress`; returns what the user should know about it."""
    state = checkpoint.state
    experiment.check(state.get("experiment", {}))
    values = put_tensors(checkpoint, training)
    load_generators(values, training.world.rank, training.world.device)
    vars(progress).update(vars(Progress.from_json(state.get("progress", {}))))
    return _changes(state, training)


def put_tensors(checkpoint: Checkpoint, training: Training) -> dict[str, Tensor]:
    """Puts the tensors of a checkpoint into `training`; returns those that concern this rank."""
    own = f"rank-{training.world.rank}/"
    names = [n for n in checkpoint.names() if not n.startswith("rank-") or n.startswith(own)]
    values = {name: checkpoint.read(name) for name in names}
    training.carried.load_tensors(values, training.optimizer)
    if training.average is not None:
        training.average.load_tensors(values)
    if training.loss_scale is not None:
        training.loss_scale.load_tensors(values)
    return values


def _changes(state: dict[str, Any], training: Training) -> list[str]:
    config = training.config
    now = {
        "ranks": training.world.num_ranks,
        "strategy": config.parallel.strategy,
        "micro_batch": config.parallel.micro_batch,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    changed = [
        f"{key} {state[key]} → {value}"
        for key, value in now.items()
        if state.get(key, value) != value
    ]
    if not changed:
        return []
    text = f"changed since the checkpoint: {', '.join(changed)}"
    if config.deterministic:
        text += "; the run goes on with the same samples, but bit-equality holds only where nothing changes"
    return [text]
