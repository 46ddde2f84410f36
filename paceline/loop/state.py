"""What a run must know to go on as if it had never stopped, besides tensors: a few plain values."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.errors import UserError


@dataclass
class Progress:
    """Where a run is. Everything here is equal on all ranks.

    step: optimizer steps done. epoch, position: the cursor, in samples of the epoch's order.
    best, best_step: the best value of the watched metric. stale: evaluations since then.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    samples: int = 0
    skipped: int = 0
    best: float | None = None
    best_step: int = -1
    stale: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Progress:
        progress = Progress()
        for name, default in asdict(progress).items():
            found = value.get(name, default)
            whole = isinstance(found, int) and not isinstance(found, bool)
            if not whole and name != "best":
                raise UserError(
                    f"the checkpoint's progress has {name} = {found!r}", "resume from another one"
                )
            setattr(progress, name, found)
        return progress


@dataclass(frozen=True)
class Experiment:
    """What may not change when a run goes on: another value would be another experiment."""

    seed: int
    global_batch: int
    data: str  # fingerprint
    model: str

    def check(self, saved: Mapping[str, Any]) -> None:
        for name, now in asdict(self).items():
            before = saved.get(name, now)
            if before != now:
                shown = {
                    "data": "the data set",
                    "model": "model.name",
                    "global_batch": "train.global_batch",
                }
                raise UserError(
                    f"{shown.get(name, name)} has changed since the checkpoint: {before!r} → {now!r}",
                    "resume with the earlier value, or start a new run with model.weights",
                )


def generator_tensors(rank: int, device: torch.device) -> dict[str, Tensor]:
    """The states of this rank's generators: torch, numpy, random."""
    prefix = f"rank-{rank}/generator"
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, internal, next_gauss = random.getstate()
    states = {
        f"{prefix}/torch": torch.get_rng_state(),
        f"{prefix}/numpy": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
        f"{prefix}/numpy_rest": torch.tensor([position, has_gauss, gauss], dtype=torch.float64),
        f"{prefix}/python": torch.tensor(internal, dtype=torch.int64),
        f"{prefix}/python_rest": torch.tensor(
            [version, next_gauss is not None, next_gauss or 0.0], dtype=torch.float64
        ),
    }
    if device.type == "cuda":
        states[f"{prefix}/cuda"] = torch.cuda.get_rng_state(device)
    return states


def load_generators(values: Mapping[str, Tensor], rank: int, device: torch.device) -> None:
    """Takes up this rank's generators; a rank that the checkpoint does not know keeps its fresh ones."""
    prefix = f"rank-{rank}/generator"
    if f"{prefix}/torch" not in values:
        return
    torch.set_rng_state(values[f"{prefix}/torch"])
    position, has_gauss, gauss = values[f"{prefix}/numpy_rest"].tolist()
    keys = values[f"{prefix}/numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(position), int(has_gauss), gauss))
    version, has_next, next_gauss = values[f"{prefix}/python_rest"].tolist()
    internal = tuple(values[f"{prefix}/python"].tolist())
    random.setstate((int(version), internal, next_gauss if has_next else None))
    if device.type == "cuda" and f"{prefix}/cuda" in values:
        torch.cuda.set_rng_state(values[f"{prefix}/cuda"], device)
