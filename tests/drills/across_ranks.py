"""Drill: a run that goes on with other numbers of ranks keeps its sample order and, in fp64, its weights."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.checkpoint import load_weights
from paceline.errors import ExitCode
from tests.drills.plan import LAUNCHER, Fault
from tests.drills.report import Report
from tests.drills.runs import DrillRun, settings

TOLERANCE = 1e-9  # relative, of every tensor of the final weights
NUM_SAMPLES = 1437
CONFIG: dict[str, Any] = {
    "deterministic": False,
    "precision__dtype": "fp64",
    "parallel__micro_batch": 16,
    "train__epochs": 3,
}
SIGKILL, SIGTERM, SIGUSR1 = "SIGKILL", "SIGTERM", "SIGUSR1"
STOPS = (SIGTERM, SIGUSR1)


@dataclass(frozen=True)
class Leg:
    """A launch with this many ranks, which a signal to the launcher ends; the last one finishes."""

    num_ranks: int
    how: str = ""


SEQUENCES = [
    [Leg(1, SIGKILL), Leg(2, SIGTERM), Leg(3, SIGKILL), Leg(1)],
    [Leg(3, SIGUSR1), Leg(1, SIGKILL), Leg(2, SIGKILL), Leg(3)],
    [Leg(2, SIGKILL), Leg(1, SIGTERM), Leg(3, SIGUSR1), Leg(2)],
    [Leg(1, SIGUSR1), Leg(3, SIGKILL), Leg(2, SIGTERM), Leg(1)],
]

Ledger = dict[
    int, tuple[int, list[int]]
]  # by step: the epoch, and the samples of all ranks in order


def drill(
    folder: Path,
    *,
    seed: int,
    count: int,
    sequences: Sequence[Sequence[Leg]] = SEQUENCES,
    quick: bool = False,
) -> Report:
    """`count` runs through changing numbers of ranks, against one on one rank. Raises AssertionError."""
    reference = DrillRun(folder / "undisturbed", settings(**CONFIG, parallel__ranks=1))
    reference.undisturbed(quick=quick)
    wanted = ledger(reference)
    check_epochs(wanted)
    runs, largest = [reference], 0.0
    for number in range(count):
        legs = sequences[number % len(sequences)]
        run = DrillRun(folder / f"run-{number}", settings(**CONFIG, parallel__ranks=1))
        generator = random.Random(f"{seed} {number}")
        for leg in legs:
            go(run, leg, generator)
        run.check_clean()
        found = ledger(run)
        wrong = [step for step in wanted if found.get(step) != wanted[step]]
        assert not wrong and found.keys() == wanted.keys(), f"other samples in the steps {wrong}"
        difference = largest_difference(run, reference)
        assert difference < TOLERANCE, f"the weights differ by {difference:.1e}, relative"
        largest = max(largest, difference)
        runs.append(run)
    report = Report("across ranks")
    report.add_kills([each for run in runs for each in run.struck()])
    report.figures["ranks"] = "; ".join(
        " → ".join(str(leg.num_ranks) for leg in sequences[n % len(sequences)])
        for n in range(count)
    )
    report.figures["equal ledgers, every index once an epoch"] = len(runs) - 1
    report.figures["largest relative difference of the fp64 weights"] = f"{largest:.1e}"
    report.add_cleanliness(runs)
    return report


def go(run: DrillRun, leg: Leg, generator: random.Random) -> None:
    """One leg, from wherever the run is; it always takes some steps."""
    passes = (6 // leg.num_ranks) * generator.randint(3, 9)  # a step has that many micro-batches
    fault = Fault(0, "step", passes, generator.randrange(leg.num_ranks), LAUNCHER, leg.how)
    run.use([fault] if leg.how else [])
    code = run.launch("--ranks", str(leg.num_ranks))
    wanted = {SIGKILL: -9, "": ExitCode.OK}.get(leg.how, ExitCode.RESUME)
    assert code == wanted, f"exit code {code} instead of {wanted}:\n{run.output()}"


def ledger(run: DrillRun) -> Ledger:
    """What each step trained on, the last time that it was taken.

    Rank 0 tells how many ranks took part then; lines of others are of an earlier time.
    """
    by_rank = [_last_lines(run, rank) for rank in range(3)]
    taken: Ledger = {}
    num_ranks = 0
    for record in run.records(0):
        if record["kind"] == "start":
            num_ranks = record["num_ranks"]
        elif record["kind"] == "samples":
            step, epoch = record["step"], record["epoch"]
            lines = [by_rank[rank].get(step, {}) for rank in range(num_ranks)]
            taken[step] = epoch, [index for line in lines for index in line.get("indices", [])]
    return taken


def _last_lines(run: DrillRun, rank: int) -> dict[int, dict[str, Any]]:
    return {each["step"]: each for each in run.records(rank) if each["kind"] == "samples"}


def check_epochs(found: Ledger) -> None:
    """Every index exactly once an epoch."""
    for epoch in {epoch for epoch, _ in found.values()}:
        indices = [index for at, part in found.values() if at == epoch for index in part]
        assert sorted(indices) == list(range(NUM_SAMPLES)), f"epoch {epoch} is not whole"


def largest_difference(run: DrillRun, reference: DrillRun) -> float:
    ours, theirs = load_weights(run.run.weights), load_weights(reference.run.weights)
    assert ours.keys() == theirs.keys(), "other names of tensors"
    return max(
        float((ours[n].double() - t.double()).norm() / t.double().norm().clamp_min(1e-300))
        for n, t in theirs.items()
    )
