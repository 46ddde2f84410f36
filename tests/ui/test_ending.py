"""How a run ends on the screen, and how it begins."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from paceline.records.folder import RunFolder
from paceline.ui.ending import show_end
from paceline.ui.opening import opening
from tests.ui.planted import PlantedRun, assert_golden


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlantedRun:
    monkeypatch.chdir(tmp_path)
    return PlantedRun(Path("runs/digits"))


def end_of(folder: RunFolder) -> str:
    stream = io.StringIO()
    show_end(folder, stream)
    return stream.getvalue()


def test_a_finished_run_names_its_results_and_what_to_do_next(
    run: PlantedRun, tmp_path: Path
) -> None:
    run.finish()
    assert_golden("finished.txt", end_of(run.folder), tmp_path)


def test_a_stopped_run_says_how_to_resume(run: PlantedRun) -> None:
    run.finish(status="stopped", reason="SIGTERM", step=120, weights=None)
    first = end_of(run.folder).splitlines()[0]
    assert first == (
        "stopped by SIGTERM after step 120, saved; resume with: paceline train --resume runs/digits"
    )
    assert "use the weights" not in end_of(run.folder)


def test_a_stop_that_could_not_save_says_so(run: PlantedRun) -> None:
    run.finish(status="stopped", reason="SIGTERM", step=3, weights=None, checkpoint=None)
    assert "after step 3, not saved" in end_of(run.folder)


def test_an_early_end_names_its_reason(run: PlantedRun) -> None:
    run.finish(reason="no better accuracy in 5 evaluations")
    assert end_of(run.folder).startswith("finished (no better accuracy in 5 evaluations): ")


def test_a_failed_or_open_run_has_no_summary(run: PlantedRun) -> None:
    assert end_of(run.folder) == ""
    run.finish(status="failed", reason="rank 1 was killed")
    assert end_of(run.folder) == ""


def test_commands_can_be_pasted(tmp_path: Path) -> None:
    run = PlantedRun(tmp_path / "my runs; rm -rf *")
    run.finish(status="stopped", reason="SIGTERM")
    assert f"paceline train --resume '{tmp_path}/my runs; rm -rf *'" in end_of(run.folder)


def test_a_run_that_had_nothing_left_to_do_shows_what_it_has(run: PlantedRun) -> None:
    metrics = {"best_accuracy": 0.9861, "loss": None}
    run.finish(images_per_s=None, seconds=1.5, metrics=metrics, checkpoint=None)
    lines = end_of(run.folder).splitlines()
    assert lines[0] == "finished: 20 epochs, 460 steps in 1.5 s"
    assert lines[1].split() == ["best", "accuracy", "98.61%"]
    assert lines[2].split()[0] == "run"


START = {
    "model": "m",
    "parameters": 1,
    "train_samples": 1,
    "eval_samples": 0,
    "device": "cuda:0",
    "strategy": "s",
    "precision": "fp32",
    "global_batch": 64,
    "num_ranks": 1,
}


@pytest.mark.parametrize(
    ("given", "split"),
    [
        ({}, "64, in one pass"),
        ({"num_ranks": 2}, "64 = 2 ranks x 32"),
        ({"num_ranks": 3}, "64 = 1 x 22 + 2 x 21 over 3 ranks"),
        (
            {"num_ranks": 2, "accumulation": 4, "micro_batch": 8},
            "64 = 2 ranks x 4 micro-batches x 8",
        ),
        ({"accumulation": 2, "micro_batch": 32}, "64 = 2 micro-batches x 32"),
    ],
)
def test_the_split_of_the_global_batch(given: dict[str, int], split: str) -> None:
    assert ("batch", split) in opening(START | given)


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        ({}, "1, on cuda:0, s, fp32"),
        ({"num_ranks": 8}, "8 x cuda, s, fp32"),
        ({"num_devices": 2}, "1 process for 2 x cuda, s, fp32"),
    ],
)
def test_what_trains(given: dict[str, int], ranks: str) -> None:
    assert ("ranks", ranks) in opening(START | given)
