"""One rank of `paceline evaluate` and `paceline predict`: a run's model with given weights, over samples, once.

Rebuilds what the run had (strategy, precision, batches), so that an evaluation equals the run's own; writes nothing
into the run folder.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline.checkpoint import load_weights, open_checkpoint
from paceline.config.schema import FinetuneConfig, OptimConfig, RunConfig
from paceline.data.batch import Batch
from paceline.data.bundle import Preparation, load_data, sample_of
from paceline.data.loader import Loader
from paceline.data.prefetch import to_device
from paceline.data.sources import may_download, open_evaluation
from paceline.data.sources.base import BadSample, Source
from paceline.data.sources.functions import as_source
from paceline.data.sources.loose import LooseImages
from paceline.errors import UserError
from paceline.loop.card import Card, Known, make_card
from paceline.loop.evaluate import Evaluation, evaluate
from paceline.loop.saving import put_tensors
from paceline.loop.setup import Objects, make_loader, make_training, set_determinism
from paceline.loop.step import Training
from paceline.loop.stopping import Decisions, StopRequest
from paceline.models.losses.classification import main_output
from paceline.models.metrics import report_metrics
from paceline.models.objective import num_outputs, task_of
from paceline.models.registry import make_spec
from paceline.models.spec import ModelSpec
from paceline.parallel.place import split_batch
from paceline.parallel.precision import parameter_dtype, set_matmul
from paceline.parallel.registry import get_strategy
from paceline.parallel.world import World, join, leave
from paceline.records.phases import PhaseClock


@dataclass(frozen=True, kw_only=True)
class Job:
    """What ranks are to judge.

    config: resolved. card: None for a weights file with nothing beside it. out: where ranks leave what they found.
    source: what to predict; None: evaluate.
    """

    config: RunConfig
    card: Card | None
    weights: Path
    objects: Objects
    out: Path
    source: Source | None = None


@dataclass(frozen=True)
class Samples:
    """What is judged and how the model takes it."""

    source: Source
    card: Card
    target: Tensor | None


def judge(job: Job, stop: StopRequest) -> None:
    """This rank's part of a job. Rank 0 leaves `found.json` where it was not broken off."""
    world = join(job.config.device, timeout_s=job.config.launch.timeout_s)
    set_determinism(job.config)
    set_matmul(job.config.precision)
    if job.source is None:
        _evaluate(job, world, stop)
    else:
        _predict(job, world, stop)
    leave()


def _evaluate(job: Job, world: World, stop: StopRequest) -> None:
    samples = evaluation_samples(job, world)
    spec = make_spec(
        job.config,
        channels=samples.card.channels,
        num_classes=samples.card.num_outputs if samples.card.task != "regression" else 0,
        target=samples.target,
        model=job.objects.model,
        loss=job.objects.loss,
        metrics=job.objects.metrics,
    )
    spec = _with_reports(spec, samples)
    training, loader = _prepare(job, world, spec, samples.source)
    decisions = Decisions(world, job.config, stop)
    batches = _on_device(loader, job.config, samples, world)
    found = evaluate(training, batches, lambda: bool(decisions.in_evaluation()))
    decisions.settle()
    if world.rank == 0 and found is not None:
        np.savez(job.out / "arrays.npz", **found.arrays)  # type: ignore[arg-type]
        _write(job.out, samples, found, world)


def _write(out: Path, samples: Samples, found: Evaluation, world: World) -> None:
    text = {
        "loss": found.loss,
        "metrics": found.metrics,
        "count": found.count,
        "seconds": found.seconds,
        "ranks": world.num_ranks,
        "task": samples.card.task,
        "classes": samples.card.names() if samples.card.task != "regression" else [],
    }
    (out / "found.json").write_text(json.dumps(text), encoding="utf-8")


def evaluation_samples(job: Job, world: World) -> Samples:
    """The evaluation data: an object, another source with the run's classes, or the run's own."""
    config, card = job.config, job.card
    dtype = parameter_dtype(config.precision)
    given = job.objects.eval_data
    if card is not None and (given is not None or config.data.eval_source):
        train = Known(card)
        source = (
            open_evaluation(config.data, config.seed, train)
            if given is None
            else as_source(given, "data=")
        )
        if len(source) == 0:
            raise UserError(f"the evaluation set ({source.name}) has no samples", "add samples")
        if train.num_classes and source.num_classes not in (0, train.num_classes):
            raise UserError(
                f"the model was trained on {train.num_classes} classes, and {source.name} has "
                f"{source.num_classes}",
                "give data with the same classes",
            )
        return Samples(source, card, sample_of(source, config, "target"))
    load = functools.partial(load_data, config.data, config.seed, dtype=dtype)
    data = world.first_on_machine("data", load) if may_download(config.data) else load()
    if data.evaluation is None:
        raise UserError(
            f"{config.data.source} has no evaluation data",
            "name some with --data, such as imagefolder:PATH",
        )
    task = task_of(config.train.loss, data.target, data.num_classes)
    outputs = num_outputs(task, data.target, data.num_classes)
    return Samples(data.evaluation, card or make_card(data, task, outputs, ()), data.target)


def _with_reports(spec: ModelSpec, samples: Samples) -> ModelSpec:
    """The spec with everything there is to measure of its task; where it is a user's own, as it is."""
    if not spec.task:
        return spec
    origin = None if samples.target is None else samples.target[0]
    known = set(spec.numbers)
    reports = report_metrics(spec.task, samples.card.num_outputs, origin)
    extra = [metric for metric in reports if not known & set(metric.numbers)]
    return dataclasses.replace(spec, measures=[*spec.measures, *extra])


def _prepare(job: Job, world: World, spec: ModelSpec, source: Source) -> tuple[Training, Loader]:
    """The model as the run's strategy carries it, with the weights; and the batches that the run evaluates."""
    config, of_checkpoint = job.config, job.weights.is_dir()
    if not of_checkpoint:  # then the weights are the averaged ones already
        config = dataclasses.replace(config, optim=OptimConfig(), finetune=FinetuneConfig())
    strategy = get_strategy(config.parallel.strategy)
    place = strategy.place(config.parallel, config.parallel.ranks, world.rank)
    split = split_batch(config.train.global_batch, config.parallel.micro_batch, place)
    clock = PhaseClock(world.device)
    carried = strategy.carry(spec, config, world, clock)
    training = make_training(config, world, place, split, spec, carried, clock, steps_per_epoch=1)
    if of_checkpoint:
        put_tensors(open_checkpoint(job.weights, verify=False), training)
    else:
        values = load_weights(job.weights)
        carried.load_tensors({f"model/{name}": value for name, value in values.items()}, None)
    return training, make_loader(config, world, place, split, source, source)


def _on_device(
    loader: Loader, config: RunConfig, samples: Samples, world: World
) -> Iterator[Batch | None]:
    prepare = Preparation(samples.card.normalization, parameter_dtype(config.precision))
    return to_device(loader.evaluation(config.train.eval_batch), world.device, prepare)


def _predict(job: Job, world: World, stop: StopRequest) -> None:
    assert job.source is not None, "there is something to predict"
    assert job.card is not None, "predictions need the card"
    card = job.card
    spec = make_spec(
        job.config,
        channels=card.channels,
        num_classes=card.num_outputs if card.task != "regression" else 0,
        target=_target_like(card),
        model=job.objects.model,
    )
    training, loader = _prepare(job, world, spec, job.source)
    for part in training.carried.parts:
        part.eval()
    decisions = Decisions(world, job.config, stop)
    samples = Samples(job.source, card, None)
    kind = torch.float64 if card.task == "regression" else torch.float32
    width, stopped = 0, ""
    with (
        training.evaluation_weights(),
        open(job.out / f"values-{world.rank}.bin", "wb") as values,
        open(job.out / f"errors-{world.rank}.jsonl", "w", encoding="utf-8") as errors,
    ):
        for batch in _on_device(loader, job.config, samples, world):
            output = training.carried.predict(batch)
            if batch is not None and output is not None:
                rows = predicted_values(main_output(output), card.task).to("cpu", kind)
                width = rows.shape[1]
                values.write(rows.numpy().tobytes())
                for row, why in _unread(job.source, batch):
                    errors.write(json.dumps({"index": row, "why": why}) + "\n")
            stopped = decisions.in_evaluation()
            if stopped:
                break
    decisions.settle()
    widest = max(int(w) for w in world.gather(torch.tensor(width)))
    if world.rank == 0 and not stopped:
        text = {
            "width": widest,
            "ranks": world.num_ranks,
            "dtype": str(kind).removeprefix("torch."),
        }
        (job.out / "found.json").write_text(json.dumps(text), encoding="utf-8")


def _target_like(card: Card) -> Tensor:
    """A target as the run's were, from which its model is built again; predictions have none."""
    if card.task == "classification":
        return torch.zeros(1, dtype=torch.int64)
    return torch.zeros(1, max(card.num_outputs, 1))


def predicted_values(output: Tensor, task: str) -> Tensor:
    """(n, outputs): probabilities of classes or of labels, or the numbers themselves."""
    rows = output.flatten(1) if output.ndim > 1 else output[:, None]
    if task == "regression":
        return rows
    return (
        torch.softmax(rows.double(), dim=1) if task == "classification" else rows.double().sigmoid()
    )


def _unread(source: Source, batch: Batch) -> Iterator[tuple[int, str]]:
    """The samples of a batch that could not be read, and why: the reason is asked for again, since they are few."""
    good = batch.weights > 0
    if isinstance(source, LooseImages):
        good &= batch.data["readable"] > 0
    read = source.read if isinstance(source, LooseImages) else source.load
    for index in batch.indices[~good.cpu()].tolist():
        try:
            read(index)
        except BadSample as error:
            yield index, error.why
        else:
            yield index, "it could not be read at first"
