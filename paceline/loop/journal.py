"""What a rank writes about its run: joins losses and phase times of the steps into records, a few times a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.loop.evaluate import Evaluation
from paceline.loop.meter import Meter, StepReport
from paceline.loop.setup import Prepared
from paceline.loop.state import Progress
from paceline.parallel.precision import remarks
from paceline.records.memory import memory_bytes
from paceline.records.writer import RecordWriter


class Journal:
    def __init__(self, prepared: Prepared, records: RecordWriter) -> None:
        self._prepared = prepared
        self._world = prepared.training.world
        self._clock = prepared.training.clock
        self._records = records
        self._loss = 0.0
        self._rows = 0
        self._totals: dict[str, float] = {}
        self._seconds = 0.0
        self._all_rows, self._all_seconds = 0, 0.0
        self._warned: set[str] = set()  # metrics that were not finite
        self.meter = Meter(self._world, prepared.spec.metrics)

    def start(self, progress: Progress, resumed_from: str | None, notes: list[str]) -> None:
        p, config = self._prepared, self._prepared.config
        parameters = sum(v.numel() for _, v in p.training.carried.named_parameters())
        self._records.write(
            "start",
            step=progress.step,
            epochs=config.train.epochs,
            steps_per_epoch=p.training.schedule.steps_per_epoch,
            total_steps=p.training.schedule.total_steps,
            global_batch=config.train.global_batch,
            micro_batch=p.split.rows,
            accumulation=p.split.accumulation,
            num_ranks=self._world.num_ranks,
            num_devices=config.parallel.ranks,
            rank=self._world.rank,
            attempt=self._world.attempt,
            strategy=config.parallel.strategy,
            device=str(self._world.device),
            precision=config.precision.dtype,
            peak_lr=p.training.schedule.peak,
            model=config.model.name,
            parameters=parameters,
            data=config.data.source,
            train_samples=len(p.data.train),
            **p.data.unit,
            eval_samples=len(p.data.evaluation) if p.data.evaluation is not None else 0,
            resumed_from=resumed_from,
            notes=[
                *p.training.carried.notes(),
                *remarks(config.precision, self._world.device),
                *p.data.notes,
                *p.notes,
                *notes,
            ],
        )
        self._records.flush()

    def flush(self, progress: Progress, last_good: Callable[[], str | None]) -> None:
        """Called after the same step on every rank."""
        times = self._clock.collect()
        reports = self.meter.collect(last_good)
        news = self._prepared.training.carried.news() if reports else None
        if news and self._world.rank == 0:
            self._records.write("note", text=news)
        memory = memory_bytes(self._world.device)
        for report, time in zip(reports, times, strict=True):
            fields: dict[str, Any] = {"step": report.step, "epoch": report.epoch}
            if self._world.rank == 0:
                fields |= {k: v for k, v in vars(report).items() if v is not None}
                fields["skipped"] = progress.skipped
            self._records.write(
                "step", **fields, step_s=time.step_s, phases=time.phases, memory_bytes=memory
            )
            self._add(report, time.step_s)
        self._records.flush()

    @property
    def images_per_s(self) -> float | None:
        """Of this process's life, over its training steps."""
        return self._all_rows / self._all_seconds if self._all_seconds else None

    def _add(self, report: StepReport, seconds: float) -> None:
        self._loss += report.loss * report.rows
        self._rows += report.rows
        self._seconds += seconds
        self._all_rows += report.rows
        self._all_seconds += seconds
        for name, value in report.metrics.items():
            self._totals[name] = self._totals.get(name, 0.0) + value * report.rows

    def evaluated(self, progress: Progress, epoch: int, evaluation: Evaluation, best: bool) -> None:
        if self._world.rank != 0:
            return
        self._records.write(
            "eval",
            step=progress.step,
            epoch=epoch,
            best=best,
            loss=evaluation.loss,
            metrics=evaluation.metrics,
            count=evaluation.count,
            seconds=evaluation.seconds,
        )
        unknown = [name for name in evaluation.not_finite() if name not in self._warned]
        if unknown:
            self._warned.update(unknown)
            values = ", ".join(f"{name} is {evaluation.value(name)}" for name in unknown)
            text = (
                f"{values} in the evaluation of epoch {epoch}; what is not finite is never the best"
            )
            self._records.write("warning", text=text)

    def memory(self, progress: Progress) -> None:
        """Where memory ran out since the last call, and what was done about it."""
        for event in self._prepared.training.room.take_events():
            self._records.write("memory", step=progress.step, **event.fields())
            if self._world.rank == 0 or event.is_local:
                kind = "warning" if event.where else "note"
                self._records.write(kind, text=event.sentence())

    def end_epoch(self, epoch: int, lr: float, evaluation: Evaluation | None) -> None:
        """The row of an epoch; of one that was resumed, over the steps since then."""
        rows = max(self._rows, 1)
        if self._world.rank == 0:
            self._records.write(
                "epoch",
                epoch=epoch,
                epochs=self._prepared.config.train.epochs,
                watched=self._prepared.watched.name,
                train_loss=self._loss / rows if self._rows else None,
                train_metrics={name: value / rows for name, value in self._totals.items()},
                eval_loss=evaluation.loss if evaluation else None,
                eval_metrics=evaluation.metrics if evaluation else None,
                lr=lr,
                images_per_s=self._rows / self._seconds if self._seconds else None,
                **self._prepared.data.unit,
                seconds=self._seconds + (evaluation.seconds if evaluation else 0.0),
            )
            self._records.flush()
        self._loss, self._rows, self._seconds, self._totals = 0.0, 0, 0.0, {}
