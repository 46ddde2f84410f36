"""Drill: memory runs out in every place of a step, on one rank and on all, and nothing changes but the time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.drills.report import Report
from tests.loop.runs import largest_difference, weights
from tests.loop.shortages import Planted, ledger, train_hungry
from tests.ranks import run_ranks

TOLERANCE = 1e-9  # relative, of every tensor of the final weights
NUM_SAMPLES = 203  # of the last step, not every rank has some
SETS: dict[str, Any] = {
    "train__global_batch": 48,
    "train__max_steps": 12,
    "train__epochs": 3,
    "memory__regrow_after": 2,
}
Case = tuple[int, dict[str, Any]]  # ranks, settings
ADAMW, SGD = {"optim__name": "adamw"}, {"optim__clip_norm": 0.05}
CASES: list[Case] = [
    (2, ADAMW),
    (1, SGD),
    (2, SGD | {"parallel__micro_batch": 12}),
    (1, ADAMW | {"parallel__micro_batch": 24}),
]
PER_RUN = 5


def plan(generator: random.Random, num_ranks: int, sets: dict[str, Any]) -> list[Planted]:
    """Five shortages of one run, each in another place or step; those of training on one rank or on all."""

    def somewhere(place: str, earliest: int) -> Planted:
        one, everyone = (generator.randrange(num_ranks),), tuple(range(num_ranks))
        ranks = generator.choice([one, everyone])
        return Planted(place, earliest + generator.randrange(2), ranks)

    # The first update is the one that makes the optimizer's state; it breaks off before or after it was done.
    first = Planted(
        generator.choice(["optimizer", "after optimizer"]), 1, (generator.randrange(num_ranks),)
    )
    later = somewhere("late backward", 9)
    if sets.get("optim__name") == "adamw":
        later = Planted("optimizer", 8, (generator.randrange(num_ranks),))
    evaluation = Planted("evaluation", 1, (generator.randrange(num_ranks),))
    return [first, somewhere("forward", 2), somewhere("early backward", 5), later, evaluation]


def drill(folder: Path, *, seed: int, count: int, cases: Sequence[Case] = CASES) -> Report:
    """`count` shortages, five a run, each run against one without. Raises AssertionError."""
    generator = random.Random(f"{seed} out of memory")
    struck: Counter[str] = Counter()
    largest, on_all = 0.0, 0
    for number in range(-(-count // PER_RUN)):
        num_ranks, sets = cases[number % len(cases)]
        planted = plan(generator, num_ranks, sets)[: count - number * PER_RUN]
        whole, short = folder / f"whole-{number}", folder / f"short-{number}"
        assert train(whole, num_ranks, [], sets) == [[]] * num_ranks, (
            "a shortage that nobody planted"
        )
        found = train(short, num_ranks, planted, sets)
        for rank, places in enumerate(found):
            wanted = sorted(each.place for each in planted if rank in each.ranks)
            assert sorted(places) == wanted, f"rank {rank}: {places} instead of {wanted}"
        assert ledger(short, num_ranks) == ledger(whole, num_ranks), "another ledger"
        difference = largest_difference(weights(short), weights(whole))
        assert difference < TOLERANCE, f"the weights differ by {difference:.1e}, relative"
        largest = max(largest, difference)
        struck.update(each.place for each in planted)
        on_all += sum(len(each.ranks) > 1 for each in planted)
    report = Report("out of memory")
    report.figures["shortages"] = ", ".join(f"{place} {struck[place]}" for place in sorted(struck))
    report.figures["of these, on both ranks at once"] = on_all
    report.figures["runs that hung, other ledgers"] = 0  # else the drill has failed
    report.figures["largest relative difference of the fp64 weights"] = f"{largest:.1e}"
    return report


def train(
    folder: Path, num_ranks: int, planted: list[Planted], sets: dict[str, Any]
) -> list[list[str]]:
    arguments = (folder, planted, SETS | sets, None, NUM_SAMPLES)
    return run_ranks(train_hungry, num_ranks, *arguments, timeout_s=300)
