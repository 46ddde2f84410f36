"""Drill: in deterministic mode a run that is killed over and over ends bit-equal to one that never was."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoint import load_weights, newest_whole, open_checkpoint
from tests.drills.plan import random_faults
from tests.drills.report import Report
from tests.drills.runs import DrillRun, settings


@dataclass(frozen=True)
class Case:
    """weight: its share of the kills."""

    weight: int
    num_ranks: int
    sets: dict[str, Any]


BATCH_NORM = {"model__options": {"norm": "batch"}}
CASES = [
    Case(17, 1, {**BATCH_NORM, "parallel__micro_batch": 48}),
    Case(17, 2, {**BATCH_NORM, "optim__name": "adamw", "optim__base_lr": 0.01}),
    Case(16, 3, {"model__options": {"norm": "group"}, "parallel__micro_batch": 16}),
    Case(4, 1, {**BATCH_NORM, "data__workers": 1}),
    Case(4, 2, {"model__options": {"unusual": True}, "train__epochs": 2}),
]


def drill(
    folder: Path, *, seed: int, count: int, cases: Sequence[Case] = CASES, quick: bool = False
) -> Report:
    """At least `count` SIGKILLs over runs on 1, 2 and 3 ranks. Raises AssertionError."""
    runs: list[DrillRun] = []
    total = sum(case.weight for case in cases)
    for number, case in enumerate(cases):
        share = -(-count * case.weight // total)
        name = f"{number}-ranks-{case.num_ranks}"
        reference = DrillRun(folder / f"{name}-undisturbed", _config(case))
        reference.undisturbed(quick=quick)
        runs.append(reference)
        generator = random.Random(f"{seed} {name}")
        hit = 0
        while hit < share:
            run = DrillRun(folder / f"{name}-killed-{hit}", _config(case))
            run.use(random_faults(generator, share - hit, case.num_ranks))
            run.to_the_end()
            run.check_clean()
            assert_equal(run, reference)
            hit += len(run.struck())
            runs.append(run)
    report = Report("bit-equality")
    report.add_kills([each for run in runs for each in run.struck()])
    report.figures["resumes (restarts by the launcher, and new launches)"] = _num_resumes(runs)
    report.figures["runs compared, all bit-equal"] = len(runs) - len(cases)
    report.add_cleanliness(runs)
    return report


def assert_equal(run: DrillRun, reference: DrillRun) -> None:
    """Final weights, the last checkpoint (optimizer, averaged weights, generators), metrics."""
    for what, read in (("weights", _weights), ("checkpoint", _checkpoint)):
        ours, theirs = read(run), read(reference)
        assert ours.keys() == theirs.keys(), f"{what}: other names"
        different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
        assert not different, (
            f"{run.folder}: {len(different)} of {len(ours)} tensors of the {what} differ from "
            f"{reference.folder}: {different[:5]}"
        )
    ours, theirs = run.result(), reference.result()
    for key in ("status", "step", "epoch", "metrics", "checkpoint"):
        assert ours[key] == theirs[key], f"{run.folder}: {key} = {ours[key]}, not {theirs[key]}"


def _config(case: Case) -> dict[str, Any]:
    return settings(parallel__ranks=case.num_ranks, **case.sets)


def _weights(run: DrillRun) -> dict[str, Tensor]:
    return load_weights(run.run.weights)


def _checkpoint(run: DrillRun) -> dict[str, Tensor]:
    path, damaged = newest_whole(run.run.checkpoints)
    assert path is not None, "a finished run has a checkpoint"
    assert not damaged, f"damaged checkpoints: {damaged}"
    return open_checkpoint(path).load()


def _num_resumes(runs: Sequence[DrillRun]) -> int:
    """Starts of rank 0 that found a checkpoint to go on from."""
    starts = [record for run in runs for record in run.records(0) if record["kind"] == "start"]
    return sum(record["resumed_from"] is not None for record in starts)
