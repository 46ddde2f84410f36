"""Memory that runs out in the middle of a run: real failures of the allocator under a real limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from tests.loop.runs import largest_difference, weights
from tests.loop.shortages import Planted, ledger, records, train_hungry
from tests.ranks import run_ranks


def compare(
    folder: Path,
    num_ranks: int,
    planted: list[Planted],
    sets: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    without: dict[str, Any] | None = None,
) -> list[list[str]]:
    """Trains with planted shortages and without; `without`: other settings of the run without."""
    sets = sets or {}
    struck = [
        train(folder / name, num_ranks, p, s, model)
        for name, p, s in (("short", planted, sets), ("whole", [], sets | (without or {})))
    ]
    assert struck[1] == [[]] * num_ranks
    assert largest_difference(weights(folder / "short"), weights(folder / "whole")) < 1e-9
    assert ledger(folder / "short", num_ranks) == ledger(folder / "whole", num_ranks)
    return struck[0]


def train(folder: Path, num_ranks: int, *args: Any) -> list[list[str]]:
    if num_ranks == 1:
        return [train_hungry(folder, *args)]
    return run_ranks(train_hungry, num_ranks, folder, *args)


def test_a_shortage_in_every_place_of_one_run_changes_nothing(tmp_path: Path) -> None:
    planted = [
        Planted("after optimizer", 1),
        Planted("forward", 2),
        Planted("evaluation", 1),
        Planted("optimizer", 4),
    ]
    sets = {"memory__regrow_after": 1, "optim__name": "adamw", "train__eval_batch": 13}
    (struck,) = compare(tmp_path, 1, planted, sets)
    assert sorted(struck) == ["after optimizer", "evaluation", "forward", "optimizer"]


@pytest.mark.parametrize("place", ["forward", "early backward", "late backward"])
def test_one_rank_of_two_runs_short(tmp_path: Path, place: str) -> None:
    struck = compare(tmp_path, 2, [Planted(place, 2, (1,))], {"optim__clip_norm": 0.05})
    assert struck == [[], [place]]


def test_batchnorm_keeps_its_groups_or_the_run_says_why_not(tmp_path: Path) -> None:
    """Where smaller groups are accepted, the run is the one with the smaller micro-batch, to its statistics."""
    planted, norm = [Planted("late backward", 1)], {"norm": "batch"}
    with pytest.raises(UserError) as refused:
        train(tmp_path / "a", 1, planted, {}, norm)
    assert "rank 0 ran out of memory in a pass of 12 samples, and smaller ones would" in str(
        refused
    )
    assert "parallel.micro_batch = 6" in refused.value.hint
    sets = {"memory__shrink": "always", "memory__regrow_after": 0}
    compare(tmp_path / "b", 1, planted, sets, norm, without={"parallel__micro_batch": 6})


def test_dropout_becomes_that_of_the_smaller_micro_batch(tmp_path: Path) -> None:
    planted, sets = [Planted("early backward", 1, (0,))], {"memory__regrow_after": 0}
    small = {"parallel__micro_batch": 3}
    compare(tmp_path, 2, planted, sets, {"dropout": 0.5}, without=small)


def test_never_below_a_floor_and_never_where_it_is_refused(tmp_path: Path) -> None:
    planted = [Planted("forward", 1), Planted("forward", 2)]
    with pytest.raises(UserError, match=r"pass of 6 samples, and no smaller one .* = 5\)"):
        train(tmp_path / "a", 1, planted, {"memory__smallest": 5})
    with pytest.raises(UserError, match="pass of 12 samples") as refused:
        train(tmp_path / "b", 1, planted, {"memory__shrink": "never"})
    assert refused.value.hint.startswith("set parallel.micro_batch = 6")


def test_another_error_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, 1, [Planted("other", 1)], {})


def test_what_happened_is_recorded(tmp_path: Path) -> None:
    """Short, grown again, short in that trial: the next try comes four times as late."""
    planted = [Planted("forward", 1), Planted("forward", 4)]
    sets = {"memory__regrow_after": 1, "train__max_steps": 8, "checkpoint__every_epochs": 0}
    train(tmp_path, 1, planted, sets)
    events = [
        (r["step"], r["where"], r["rows"], r["rows_now"]) for r in records(tmp_path, 0, "memory")
    ]
    assert events == [
        (1, "training", 12, 6),
        (1, "", 6, 12),
        (2, "training", 12, 6),
        (5, "", 6, 12),
    ]
    steps = records(tmp_path, 0, "step")
    assert [s["micro_batch"] for s in steps] == [6, 6, 6, 6, 6, 12, 12, 12]
    (first, *_) = [r["text"] for r in records(tmp_path, 0, "warning")]
    assert first == (
        "rank 0 ran out of memory in training, in a pass of 12 samples; the step was done again with 6"
    )
