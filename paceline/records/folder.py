"""The layout of a run folder, the only interface between a run and everything that looks at it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps what. Creates nothing by itself."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def probe(self) -> Path:
        """What `parallel.micro_batch = "auto"` tried and found."""
        return self.path / "probe.json"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def inputs(self) -> Path:
        """A picture of some training samples as the model gets them."""
        return self.path / "pictures" / "inputs.png"

    @property
    def graph(self) -> Path:
        """A folder with the model's graph as a TensorBoard event file."""
        return self.path / "pictures" / "graph"

    def sent(self, sink: str) -> Path:
        """How far a tracker has got, and as which run it knows this one."""
        return self.path / "sinks" / f"{sink}.json"

    @property
    def card(self) -> Path:
        """What one must know besides the weights to use them: classes, input, normalization."""
        return self.path / "model.json"

    @property
    def evaluations(self) -> Path:
        """A folder for each evaluation after the run."""
        return self.path / "evaluations"

    def records(self, rank: int) -> Path:
        return self.path / "records" / f"rank-{rank}.jsonl"

    def log(self, rank: int) -> Path:
        return self.path / "logs" / f"rank-{rank}.log"

    def failure(self, attempt: int, rank: int) -> Path:
        """What ended a rank of one attempt, as JSON; the launcher finds the first cause in it."""
        return self.path / "logs" / f"failure-{attempt}-{rank}.json"

    def write_result(self, **fields: Any) -> None:
        """How the run ended, for the launcher, schedulers and reports; what is not finite is null."""
        metrics = fields.get("metrics", {})
        fields["metrics"] = {k: v if math.isfinite(v) else None for k, v in metrics.items()}
        write_atomically(self.result, json.dumps(fields, indent=1, allow_nan=False) + "\n")

    def create(self) -> None:
        for name in ("records", "logs", "checkpoints"):
            (self.path / name).mkdir(parents=True, exist_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Writes a small text file so that a reader sees the old or the new one, never a half."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
