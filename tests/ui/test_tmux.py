"""A run on a real terminal, as tmux sees it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Tmux = Callable[..., str]


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    """Runs tmux commands on a server of the test's own."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    socket = str(tmp_path / "tmux")
    variables = {k: v for k, v in os.environ.items() if not k.startswith("TMUX")}

    def call(*arguments: str) -> str:
        command = ["tmux", "-f", os.devnull, "-S", socket, *arguments]
        return subprocess.run(
            command, env=variables, capture_output=True, text=True, check=True, timeout=30
        ).stdout

    yield call
    call("kill-server")


def wait_for(tmux: Tmux, text: str) -> list[str]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        screen = tmux("capture-pane", "-p", "-S", "-")
        if text in screen:
            return screen.rstrip("\n").splitlines()
        time.sleep(0.1)
    raise AssertionError(f"no {text!r} on the screen:\n{screen}")


def test_a_run_in_a_terminal_of_80_columns(tmux: Tmux, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.ui.play", "run", "--speed", "4", "--epochs", "3"]
    script = f"cd {shlex.quote(str(tmp_path))} && PYTHONPATH={shlex.quote(str(ROOT))} "
    script += f"{shlex.join(words)}; exec sleep 60"
    tmux("new-session", "-d", "-x", "80", "-y", "40", script)

    live = wait_for(tmux, "2/3  3")
    assert live[0] == "run    run"
    assert [line for line in live if "ETA" in line] == live[-1:]
    assert tmux("display-message", "-p", "#{cursor_flag}").strip() == "1", "the cursor is hidden"

    lines = wait_for(tmux, "use the weights")
    assert not any("ETA" in line for line in lines)
    assert sum(line.startswith("epoch ") for line in lines) == 1
    rows = [line.split()[0] for line in lines if line.split() and line.split()[0].endswith("/3")]
    assert rows == ["1/3", "2/3", "3/3"]
    assert "[ranks 0-1] UserWarning: [red]something[/red] for red ears�" in lines
    assert any(line.startswith("finished: 3 epochs") for line in lines)
