"""Plants run folders: writes the records and logs of a run that never was, to be followed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from paceline.records.folder import RunFolder
from paceline.records.writer import RecordWriter

STEPS_PER_EPOCH = 23
GOLDEN = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str, tmp_path: Path) -> None:
    """The text must equal the file; where it differs on purpose, copy the new one over it."""
    new = tmp_path / name
    new.write_text(text, encoding="utf-8")
    golden = GOLDEN / name
    assert text == golden.read_text(encoding="utf-8"), f"to accept: cp {new} {golden}"


class PlantedRun:
    """A run that trains nothing: same records, made-up numbers."""

    def __init__(self, path: Path, *, num_ranks: int = 2, epochs: int = 20) -> None:
        self.folder = RunFolder(path)
        self.folder.create()
        self.num_ranks, self.epochs = num_ranks, epochs
        self.writers = [RecordWriter(self.folder.records(rank)) for rank in range(num_ranks)]
        self._random = random.Random(0)
        self._best = 0.0

    def start(self, step: int = 0, attempt: int = 0, **changes: Any) -> None:
        for rank, writer in enumerate(self.writers):
            fields = {
                "step": step,
                "epochs": self.epochs,
                "steps_per_epoch": STEPS_PER_EPOCH,
                "total_steps": STEPS_PER_EPOCH * self.epochs,
                "global_batch": 64,
                "num_ranks": self.num_ranks,
                "rank": rank,
                "attempt": attempt,
                "strategy": "ddp" if self.num_ranks > 1 else "single",
                "device": "cpu",
                "precision": "fp32",
                "model": "small_resnet",
                "parameters": 174_970,
                "train_samples": 1437,
                "eval_samples": 360,
                "resumed_from": f"checkpoints/step-{step:08}" if step else None,
                "notes": [],
                "data": "digits",
                "micro_batch": 64 // self.num_ranks,
                "accumulation": 1,
                "num_devices": self.num_ranks,
                "peak_lr": 0.1,
            }
            writer.write("start", **{**fields, **changes})
        self.flush()

    def step(self, step: int, *, step_s: float = 0.05, **changes: Any) -> None:
        shares = {"data": 0.03, "forward": 0.3, "backward": 0.45, "exchange": 0.12, "other": 0.1}
        done = step / (STEPS_PER_EPOCH * self.epochs)
        for rank, writer in enumerate(self.writers):
            fields: dict[str, Any] = {
                "step": step,
                "step_s": step_s,
                "phases": {name: share * step_s for name, share in shares.items()},
                "memory_bytes": 412 << 20,
            }
            if rank == 0:
                fields |= {
                    "epoch": step / STEPS_PER_EPOCH,
                    "samples": 64 * step,
                    "rows": 64,
                    "loss": 2.3 * 0.02**done,
                    "metrics": {"accuracy": 1 - 0.9 * 0.02**done},
                    "lr": 0.1 * (1 - done),
                    "skipped": 0,
                }
                fields |= changes
            writer.write("step", **fields)

    def end_epoch(self, epoch: int, *, seconds: float = 1.2) -> None:
        """An evaluation, its epoch record, a checkpoint."""
        step = epoch * STEPS_PER_EPOCH
        done = epoch / self.epochs
        accuracy = 1 - 0.9 * 0.015**done - self._random.random() * 0.02
        best = accuracy > self._best
        self._best = max(accuracy, self._best)
        metrics, loss = {"accuracy": accuracy}, 2.3 * 0.015**done
        main = self.writers[0]
        main.write(
            "eval",
            step=step,
            epoch=epoch,
            loss=loss,
            metrics=metrics,
            count=360,
            seconds=0.2,
            best=best,
        )
        main.write(
            "epoch",
            epoch=epoch,
            epochs=self.epochs,
            train_loss=2.3 * 0.02**done,
            train_metrics={"accuracy": 1 - 0.9 * 0.02**done},
            eval_loss=loss,
            eval_metrics=metrics,
            lr=0.1 * (1 - done),
            images_per_s=1234.5,
            seconds=seconds,
        )
        main.write(
            "checkpoint",
            step=step,
            path=f"checkpoints/step-{step:08}",
            seconds=0.1,
            bytes=1 << 20,
            ok=True,
            error=None,
        )
        self.flush()

    def run_epoch(self, epoch: int) -> None:
        for step in range((epoch - 1) * STEPS_PER_EPOCH + 1, epoch * STEPS_PER_EPOCH + 1):
            self.step(step)
        self.end_epoch(epoch)

    def record(self, kind: str, rank: int = 0, **fields: Any) -> None:
        self.writers[rank].write(kind, **fields)
        self.flush()

    def log(self, rank: int, text: str) -> None:
        with open(self.folder.log(rank), "a", encoding="utf-8") as file:
            file.write(text)

    def finish(self, **changes: Any) -> None:
        fields = {
            "status": "finished",
            "reason": "",
            "step": STEPS_PER_EPOCH * self.epochs,
            "epoch": float(self.epochs),
            "metrics": {"accuracy": 0.9861, "loss": 0.0521},
            "seconds": 58.3,
            "images_per_s": 1234.5,
            "weights": "model.safetensors",
            "checkpoint": f"checkpoints/step-{STEPS_PER_EPOCH * self.epochs:08}",
        }
        fields |= changes
        self.writers[0].write("end", status=fields["status"], reason=fields["reason"])
        self.flush()
        self.folder.result.write_text(json.dumps(fields))

    def flush(self) -> None:
        """Keeps no file open, so that there is nothing to close."""
        for writer in self.writers:
            writer.close()
