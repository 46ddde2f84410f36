"""The drills with few seeds; `python -m tests.drills` runs them whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills import across_ranks, bit_equality, out_of_memory, restarts
from tests.drills.across_ranks import SIGTERM, Leg
from tests.drills.bit_equality import Case

pytestmark = pytest.mark.slow


def test_a_run_that_is_killed_ends_bit_equal_to_one_that_is_not(tmp_path: Path) -> None:
    """One SIGKILL of the launcher, between steps, and one of a rank that is pruning checkpoints."""
    case = Case(1, 2, {"model__options": {"norm": "batch"}, "train__epochs": 2})
    report = bit_equality.drill(tmp_path / "drill", seed=31, count=2, cases=[case], quick=True)
    assert report.figures["kills and stops that hit a living process"] == 2


def test_a_run_goes_on_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    legs = [Leg(3, SIGTERM), Leg(2)]
    across_ranks.drill(tmp_path / "drill", seed=0, count=1, sequences=[legs], quick=True)


def test_a_restart_under_torchrun_recovers(tmp_path: Path) -> None:
    restarts.drill_torchrun(tmp_path / "drill", seed=0, count=1)


def test_memory_that_runs_out_changes_nothing(tmp_path: Path) -> None:
    out_of_memory.drill(tmp_path / "drill", seed=0, count=5)
