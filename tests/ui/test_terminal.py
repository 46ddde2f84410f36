"""A run on a terminal: what stands on the screen at 60, 80 and 120 columns, and what may not."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from paceline.ui.follow import View
from paceline.ui.screen import Terminal
from tests.ui.planted import PlantedRun, assert_golden

STYLE = re.compile(r"\x1b\[[\d;]*m")


class Shown:
    """A View of a planted run on a terminal of fixed width, with a clock that the test moves."""

    def __init__(self, path: Path, width: int = 80, num_ranks: int = 2) -> None:
        self.run = PlantedRun(path, num_ranks=num_ranks)
        self.time = 0.0
        self.file = io.StringIO()
        self.width = width
        console = Console(file=self.file, force_terminal=True, width=width, color_system="standard")
        screen = Terminal(console)
        self.view = View(self.run.folder, num_ranks=num_ranks, screen=screen, now=lambda: self.time)

    def poll(self, seconds: float = 0.2) -> None:
        self.run.flush()
        self.time += seconds
        self.view.poll()

    def lines(self) -> list[str]:
        """What is on the screen and in its scrollback, played as a terminal plays it."""
        text = STYLE.sub("", self.file.getvalue())
        lines = []
        for line in text.split("\n"):
            last = line.rpartition("\r\x1b[2K")[2]
            assert "\x1b" not in last, "an escape code that we did not send"
            assert "\r" not in last
            lines.append(last.rstrip())
        return lines


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    return Shown(tmp_path / "run")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_screen_of_a_run(tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = Shown(Path("runs/digits"), width)
    shown.poll()
    shown.run.start(notes=["dp on a CPU says nothing of speed"])
    for epoch in (1, 2, 3):
        shown.run.run_epoch(epoch)
        shown.poll()
    shown.run.log(0, "loading\nonly here\n")
    shown.run.log(1, "loading\n")
    shown.run.record("warning", text="the disk has 1.2 GiB left, and a checkpoint takes 1.0 GiB")
    for step in range(70, 80):
        shown.run.step(step)
    shown.poll()
    shown.poll(2.0)
    text = "\n".join(shown.lines()) + "\n"
    assert max(len(line) for line in text.splitlines()) < width
    assert_golden(f"terminal-{width}.txt", text, tmp_path)


def test_the_progress_line_goes_away_at_the_end(shown: Shown) -> None:
    shown.run.start()
    shown.run.run_epoch(1)
    shown.poll()
    assert "images/s" in shown.lines()[-1] or "/s" in shown.lines()[-1]
    shown.run.finish()
    shown.poll()
    shown.view.close()
    assert shown.lines()[-1] == ""
    assert "ETA" not in "\n".join(shown.lines())


def test_large_numbers_never_wrap(tmp_path: Path) -> None:
    for width in (20, 40, 60, 80, 100, 120, 200):
        shown = Shown(tmp_path / str(width), width)
        shown.run.start(epochs=1000, steps_per_epoch=123_456, total_steps=123_456_000)
        for step in range(9_999_990, 9_999_999):
            shown.run.step(step, step_s=12.3, epoch=812.3, loss=1e9, skipped=1_234_567)
        shown.poll()
        assert 0 < len(shown.lines()[-1]) < width


def test_before_the_first_step_the_line_says_what_it_waits_for(shown: Shown) -> None:
    shown.poll(3.0)
    assert shown.lines()[-1] == "starting 2 ranks, 0:03"
    shown.run.start()
    shown.poll()
    shown.poll(2.0)
    assert shown.lines()[-1] == "waiting for the first step, 0:02"


def test_a_run_that_makes_no_progress_says_so(shown: Shown) -> None:
    shown.run.start()
    for step in range(1, 6):
        shown.run.step(step)
    shown.poll()
    assert "ETA" in shown.lines()[-1]
    shown.poll(30.0)
    assert "no step for 0:30" in shown.lines()[-1]


def test_speed_and_time_left_follow_the_recent_steps(shown: Shown) -> None:
    shown.run.start()
    shown.run.step(1, step_s=30.0)  # the first step compiles and is left out
    for step in range(2, 24):
        shown.run.step(step, step_s=0.1)
    shown.poll()
    assert " 640/s" in shown.lines()[-1]
    assert "ETA 0:44" in shown.lines()[-1]  # 437 steps
    shown.run.end_epoch(1)  # evaluation takes 0.2 s, and 19 are left
    shown.poll()
    assert "ETA 0:48" in shown.lines()[-1]
    for step in range(24, 60):
        shown.run.step(step, step_s=1.0)
    shown.poll()
    assert " 64.0/s" in shown.lines()[-1]


def test_a_loss_that_is_not_finite_is_shown(shown: Shown) -> None:
    shown.run.start()
    for step in range(1, 4):
        shown.run.step(step, loss=float("nan"))
    shown.poll()
    assert "loss nan" in shown.lines()[-1]


def test_a_resumed_run_shows_only_what_is_new(tmp_path: Path) -> None:
    run = PlantedRun(tmp_path / "run")
    run.start()
    run.run_epoch(1)
    run.log(0, "an old line\n")
    file = io.StringIO()
    screen = Terminal(Console(file=file, force_terminal=True, width=80))
    view = View(run.folder, num_ranks=2, screen=screen, from_start=False)
    run.start(step=23)
    run.run_epoch(2)
    view.poll()
    view.close()
    text = STYLE.sub("", file.getvalue())
    assert "note: resumed from step 23 (checkpoints/step-00000023)" in text
    assert " 1/20 " not in text
    assert " 2/20 " in text
    assert "an old line" not in text


def test_a_restart_is_told_with_its_cause_and_its_step(shown: Shown) -> None:
    shown.run.start()
    shown.run.run_epoch(1)
    shown.run.step(24)
    shown.poll()
    shown.view.notice("rank 1 was killed by SIGKILL; restart 1 of at most 3", "warning")
    shown.run.start(step=23, attempt=1)
    shown.poll()
    assert shown.lines()[-3:] == [
        "warning: rank 1 was killed by SIGKILL; restart 1 of at most 3",
        "note: resumed from step 23 (checkpoints/step-00000023)",
        "waiting for the first step, 0:00",
    ]
    shown.run.step(24)
    shown.poll()
    assert "24/460" in shown.lines()[-1]


def test_a_restart_without_a_checkpoint_is_told(shown: Shown) -> None:
    shown.run.start()
    shown.run.step(1)
    shown.run.start(attempt=1)
    shown.poll()
    assert "note: started again from the beginning" in shown.lines()


def test_a_failed_checkpoint_is_a_warning(shown: Shown) -> None:
    shown.run.start()
    shown.run.record("checkpoint", step=5, ok=False, error="No space left on device", path="x")
    shown.poll()
    text = " ".join(shown.lines())
    assert "warning: the checkpoint of step 5 was not saved: No space left on device" in text
    assert "training goes on" in text


def test_a_warning_of_one_rank_names_it(shown: Shown) -> None:
    shown.run.start()
    shown.run.record("warning", rank=1, text="slow disk")
    for rank in (0, 1):
        shown.run.record("warning", rank=rank, text="same everywhere")
    shown.poll()
    shown.view.close()
    assert "warning: [rank 1] slow disk" in shown.lines()
    assert shown.lines().count("warning: same everywhere") == 1


def test_columns_follow_the_metrics_there_are(shown: Shown) -> None:
    shown.run.start()
    epoch = {"epoch": 1, "epochs": 20, "train_loss": 0.5, "lr": 0.1}
    epoch |= {"seconds": 200.0, "eval_loss": None, "eval_metrics": None}
    epoch["images_per_s"] = None  # nothing was left to train
    shown.run.record("epoch", train_metrics={"\x1b[2Jf1": 0.25}, **epoch)
    shown.poll()
    header, row = shown.lines()[-3:-1]
    assert "train f1" in header
    assert row.split() == ["1/20", "0.5000", "0.2500", "-", "-", "0.1", "-", "3:20"]


def test_colours_are_left_out_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    run = PlantedRun(tmp_path / "run")
    file = io.StringIO()
    view = View(
        run.folder, num_ranks=2, screen=Terminal(Console(file=file, force_terminal=True, width=80))
    )
    run.start()
    run.run_epoch(1)
    run.record("warning", text="careful")
    view.poll()
    view.close()
    codes = {code for found in STYLE.findall(file.getvalue()) for code in found[2:-1].split(";")}
    assert codes <= {"0", "1", "2"}  # plain, bold, dim
