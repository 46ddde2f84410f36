"""The training of one rank, from joining the others to the final weights; reads top to bottom, without hooks."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

from torch import Tensor

from paceline.checkpoint import Store, save_weights
from paceline.config.schema import RunConfig
from paceline.data.loader import StepBatches
from paceline.loop.evaluate import Evaluation, evaluate
from paceline.loop.journal import Journal
from paceline.loop.portrait import portray
from paceline.loop.probe import where_from
from paceline.loop.saving import Saver, find_checkpoint, is_due, restore
from paceline.loop.setup import Objects, Prepared, prepare, resolve
from paceline.loop.state import Experiment, Progress
from paceline.loop.step import train_step
from paceline.loop.stopping import Decisions, StopRequest
from paceline.parallel.world import join, leave
from paceline.records.folder import RunFolder
from paceline.records.writer import RecordWriter


@dataclass
class Run:
    """One rank's view of a run under way."""

    folder: RunFolder
    prepared: Prepared
    progress: Progress
    saver: Saver
    journal: Journal
    decisions: Decisions
    records: RecordWriter
    evaluation: Evaluation | None = None


def run(
    folder: RunFolder, config: RunConfig, *, stop: StopRequest, objects: Objects | None = None
) -> str:
    """Trains this rank's part of a run until its end, or until it is asked to stop.

    Goes on from the newest whole checkpoint in the run folder where there is one: so a restart after a crash, a
    resume and a fresh start are one thing. Returns the status written to result.json: "finished" or "stopped".
    """
    started = time.monotonic()
    world = join(config.device, timeout_s=config.launch.timeout_s)
    with RecordWriter(folder.records(world.rank)) as records:
        prepared = prepare(resolve(config, world.num_ranks), world, objects or Objects())
        this = start(folder, prepared, records, stop)
        if world.rank == 0 and config.records.sinks:
            portray(folder, prepared, records)
        gc.collect()
        gc.freeze()  # what libraries and set-up made is no garbage to look through in the middle of a step
        reason = train(this)
        finish(this, reason, time.monotonic() - started)
    leave()
    return "stopped" if reason else "finished"


def start(folder: RunFolder, prepared: Prepared, records: RecordWriter, stop: StopRequest) -> Run:
    config, world = prepared.config, prepared.training.world
    progress = Progress()
    experiment = Experiment(
        config.seed, config.train.global_batch, prepared.data.fingerprint, config.model.name
    )
    store = Store(
        folder.checkpoints,
        rank=world.rank,
        num_ranks=world.num_ranks,
        group=world.saving,
        keep_last=config.checkpoint.keep_last,
        keep_best=config.checkpoint.keep_best,
        background=config.checkpoint.background,
    )
    checkpoint, notes = find_checkpoint(folder.checkpoints, world)
    resumed_from = None
    if checkpoint is not None:
        resumed_from = f"checkpoints/{checkpoint.path.name}"
        notes += restore(checkpoint, prepared.training, progress, experiment)
    saver = Saver(prepared.training, progress, experiment, store, records)
    saver.newest = resumed_from
    journal = Journal(prepared, records)
    journal.start(progress, resumed_from, [*where_from(folder), *notes])
    if world.rank == 0:
        prepared.card.write(folder.card)
    decisions = Decisions(world, config, stop)
    return Run(folder, prepared, progress, saver, journal, decisions, records)


def train(this: Run) -> str:
    """Steps, epochs, evaluations and saves; returns why it was asked to stop, or nothing at the end."""
    config, progress = this.prepared.config, this.progress
    stop = this.decisions.at_start()
    if stop:
        return stop
    while progress.epoch < config.train.epochs and not _steps_done(this) and not ended_early(this):
        stop = train_epoch(this)
        if stop:
            return stop
        stop = end_epoch(this)
        if stop:
            return stop
    return ""


def train_epoch(this: Run) -> str:
    """The rest of the epoch that the cursor is in; returns why to stop, if so."""
    prepared, progress, clock = this.prepared, this.progress, this.prepared.training.clock
    prepared.training.carried.begin_epoch(progress.epoch)
    steps = prepared.training_steps(progress.epoch, progress.position)
    while not _steps_done(this):
        clock.start_step()
        with clock.phase("data"):
            batches = next(steps, None)
        if batches is None:
            break
        take_step(this, batches)
        decision = this.decisions.after_step()
        clock.end_step()

        due = decision.save or is_due(prepared.config.checkpoint, progress.step)
        if decision.flush or decision.stop or due or this.journal.meter.full:
            this.journal.flush(progress, this.saver.last_good)
            this.saver.report()
        if due or decision.stop:
            this.saver.save()
        if decision.stop:
            return decision.stop
    this.journal.flush(progress, this.saver.last_good)
    return ""


def take_step(this: Run, batches: StepBatches) -> None:
    """One optimizer step, the cursor behind it, and its sums on their way to the records."""
    training, progress = this.prepared.training, this.progress
    count = batches.num_global
    if this.prepared.config.data.on_bad_sample == "skip":
        count = training.world.sum_count(batches.num_real)
        progress.skipped += batches.num_global - count
    step = progress.step
    sums, gradients = train_step(training, batches.micro_batches, step=step, count=max(count, 1))
    micro_batch = training.room.rows
    training.room.after_step()
    progress.step += 1
    progress.position = batches.stop
    progress.samples += batches.num_global
    this.journal.meter.add(
        step=progress.step,
        epoch=progress.epoch + batches.stop / this.prepared.loader.epoch_samples,
        samples=progress.samples,
        lr=training.schedule.learning_rate(step),
        sums=sums,
        gradients=gradients,
        micro_batch=micro_batch,
        loss_scale=training.loss_scale.scale if training.loss_scale is not None else None,
    )
    this.journal.memory(progress)
    if this.prepared.config.records.samples:
        this.records.write(
            "samples", step=progress.step, epoch=progress.epoch, indices=batches.indices
        )


def end_epoch(this: Run) -> str:
    """Evaluates where it is time, keeps the best, moves the cursor, saves; returns why to stop, if so."""
    config, progress = this.prepared.config, this.progress
    complete = progress.position >= this.prepared.loader.epoch_samples
    epoch = progress.epoch + 1 if complete else progress.epoch
    last = epoch >= config.train.epochs or _steps_done(this)
    name = (
        progress.epoch + 1
    )  # of the epoch that ends here, counted from 1; max_steps may end it early
    better = False
    this.evaluation = None
    if this.prepared.data.evaluation is not None and (last or epoch % config.train.eval_every == 0):
        this.evaluation, stop = run_evaluation(this)
        if this.evaluation is None:
            this.saver.save()
            return stop
        better = _judge(this, this.evaluation)
        this.journal.evaluated(progress, name, this.evaluation, better)
    this.journal.end_epoch(name, _lr(this), this.evaluation)
    if complete:
        progress.epoch, progress.position = epoch, 0
    every = config.checkpoint.every_epochs
    keep_best = better and config.checkpoint.keep_best
    if last or keep_best or (complete and every and epoch % every == 0):
        this.saver.save(best=better)
    return ""


def run_evaluation(this: Run) -> tuple[Evaluation | None, str]:
    """The evaluation, or nothing and why it was broken off."""
    prepared = this.prepared
    reason = ""

    def should_stop() -> bool:
        nonlocal reason
        reason = this.decisions.in_evaluation()
        return bool(reason)

    batches = prepared.on_device(prepared.loader.evaluation(prepared.config.train.eval_batch))
    evaluation = evaluate(prepared.training, batches, should_stop)
    this.journal.memory(this.progress)
    return evaluation, reason


def finish(this: Run, reason: str, seconds: float) -> None:
    """The last save, the final weights and result.json."""
    world, progress = this.prepared.training.world, this.progress
    this.decisions.settle()
    if not reason and this.evaluation is None and this.prepared.data.evaluation is not None:
        this.evaluation, _ = run_evaluation(this)
    this.saver.finish()
    status = "stopped" if reason else "finished"
    if world.rank == 0 and not reason:
        save_weights(this.folder.weights, final_weights(this))
    reason = reason or ended_early(this)
    this.records.write("end", status=status, reason=reason, step=progress.step)
    this.records.flush()
    world.barrier()
    if world.rank == 0:
        this.folder.write_result(
            status=status,
            reason=reason,
            step=progress.step,
            epoch=progress.epoch + progress.position / this.prepared.loader.epoch_samples,
            metrics=_final_metrics(this),
            seconds=seconds,
            images_per_s=this.journal.images_per_s or 0.0,
            **this.prepared.data.unit,
            weights=this.folder.weights.name if status == "finished" else None,
            checkpoint=this.saver.newest,
        )
    world.barrier()


def final_weights(this: Run) -> dict[str, Tensor]:
    """The model's state by its own names, as it is evaluated."""
    training = this.prepared.training
    with training.evaluation_weights():
        tensors = training.carried.tensors(training.optimizer)
        return {
            name.removeprefix("model/"): value.detach().cpu().clone()
            for name, value in tensors.items()
            if name.startswith("model/")
        }


def _final_metrics(this: Run) -> dict[str, float]:
    metrics: dict[str, float] = {}
    if this.evaluation is not None:
        metrics |= {"loss": this.evaluation.loss, **this.evaluation.metrics}
    if this.progress.best is not None:
        metrics[f"best_{this.prepared.watched.name}"] = this.progress.best
    return metrics


def _judge(this: Run, evaluation: Evaluation) -> bool:
    """Whether this evaluation is the best so far; keeps count of those that were not."""
    progress, watched = this.progress, this.prepared.watched
    value = evaluation.value(watched.name)
    better = watched.better(value, progress.best)
    if better:
        progress.best, progress.best_step, progress.stale = value, progress.step, 0
    else:
        progress.stale += 1
    return better


def _lr(this: Run) -> float:
    return this.prepared.training.schedule.learning_rate(max(this.progress.step - 1, 0))


def _steps_done(this: Run) -> bool:
    limit = this.prepared.config.train.max_steps
    return bool(limit) and this.progress.step >= limit


def ended_early(this: Run) -> str:
    """Why the evaluations so far end the training before its last epoch, or nothing."""
    config, progress, watched = this.prepared.config.train, this.progress, this.prepared.watched
    if config.target and progress.best is not None and watched.meets(progress.best, config.target):
        return f"{watched.name} reached {progress.best:.4g}"
    if config.patience and progress.stale >= config.patience:
        return f"no better {watched.name} in {progress.stale} evaluations"
    return ""
