"""A run whose output is no terminal: whole lines, no escape codes; and streams that fail."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paceline.ui.follow import View, showing
from paceline.ui.screen import Plain, Terminal, open_screen
from tests.ui.planted import PlantedRun, assert_golden

ROOT = Path(__file__).parents[2]


def play(folder: Path, **streams: int) -> subprocess.CompletedProcess[bytes]:
    """Plays a run of two epochs in its own process, at speed."""
    options = ["--speed", "30", "--epochs", "2"]
    command = [sys.executable, "-m", "tests.ui.play", str(folder), *options]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(command, env=variables, timeout=60, check=False, **given)


def test_lines_for_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = PlantedRun(Path("runs/digits"))
    file = io.StringIO()
    view = View(run.folder, num_ranks=2, screen=Plain(file, every_s=0))
    run.start()
    run.run_epoch(1)
    view.poll()
    run.log(1, "\x1b[31mhello\x1b[0m\n")
    run.record("warning", text="careful")
    run.finish()
    view.close()
    assert_golden("plain.txt", file.getvalue(), tmp_path)


def test_progress_comes_only_now_and_then(tmp_path: Path) -> None:
    run = PlantedRun(tmp_path / "run")
    file = io.StringIO()
    view = View(run.folder, num_ranks=2, screen=Plain(file, every_s=3600))
    run.start()
    for step in range(1, 20):
        run.step(step)
        run.flush()
        view.poll()
    view.close()
    assert "step 1" not in file.getvalue()


def test_a_step_that_takes_long_is_no_news(tmp_path: Path) -> None:
    run = PlantedRun(tmp_path / "run")
    file = io.StringIO()
    view = View(run.folder, num_ranks=2, screen=Plain(file, every_s=0), now=lambda: 0.0)
    run.start()
    run.step(1)
    run.flush()
    for _ in range(5):
        view.poll()
    view.close()
    assert file.getvalue().count("step 1/") == 1


def test_a_pipe_gets_no_escape_codes_and_stdout_only_the_summary(tmp_path: Path) -> None:
    done = play(tmp_path / "run")
    progress, summary = done.stderr.decode(), done.stdout.decode()
    assert done.returncode == 0, progress
    assert "\x1b" not in progress + summary
    assert "\r" not in progress + summary
    assert "epoch 2/2: train loss" in progress
    assert summary.startswith("finished: 2 epochs, 46 steps in 58 s")
    assert "finished" not in progress


def test_a_terminal_without_abilities_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    main, side = pty.openpty()
    with open(side, "w") as terminal:
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(open_screen(terminal), Plain)
        monkeypatch.setenv("TERM", "xterm-256color")
        assert isinstance(open_screen(terminal), Terminal)
    os.close(main)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(open_screen(io.StringIO()), Plain)


@pytest.mark.parametrize("closed", ["stderr", "stdout"])
def test_nobody_reading_ends_nothing(tmp_path: Path, closed: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = play(tmp_path / "run", **{closed: write})
    os.close(write)
    assert done.returncode == 0
    assert (tmp_path / "run" / "result.json").exists()
    if closed == "stderr":
        assert b"finished" in done.stdout
    else:
        assert b"Exception" not in done.stderr


def test_a_defect_of_the_display_costs_no_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = PlantedRun(tmp_path / "run")
    threads = threading.active_count()
    with showing(run.folder, num_ranks=1, screen=Plain(io.StringIO())):
        run.record("step", step=1)  # lacks everything else
    shown = capfd.readouterr().err
    assert shown.startswith("warning: the progress display failed; training goes on\nTraceback")
    assert "KeyError: 'step_s'" in shown
    assert threading.active_count() == threads


def test_a_stream_of_ascii_gets_ascii(tmp_path: Path) -> None:
    run = PlantedRun(tmp_path / "run")
    raw = io.BytesIO()
    screen = Plain(io.TextIOWrapper(raw, encoding="ascii"))
    view = View(run.folder, num_ranks=2, screen=screen)
    run.log(0, "".join(f"Zürich… {n}\n" for n in range(300)))
    view.poll()
    view.close()
    assert b"[rank 0] Z?rich... 0\n" in raw.getvalue()
    assert b"... 100 more lines in logs/rank-0.log\n" in raw.getvalue()
