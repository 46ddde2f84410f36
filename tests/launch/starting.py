"""Starts launches for tests: in this process, or in one of their own that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from paceline.config.schema import LaunchConfig
from paceline.launch.local import LaunchResult, launch
from paceline.records.folder import RunFolder

ROOT = str(Path(__file__).parents[2])
MARKER = "PACELINE_TEST_MARKER"


def fake_command(scene: str, folder: RunFolder) -> list[str]:
    """Ranks that behave as a function of `fake_ranks` says."""
    return [sys.executable, "-m", "tests.launch.fake_ranks", scene, str(folder.path)]


def run_ranks(
    scene: str | list[str],
    folder: RunFolder,
    *,
    num_ranks: int = 2,
    said: list[str] | None = None,
    tick: Callable[[], None] | None = None,
    **settings: Any,
) -> LaunchResult:
    """Launches fake ranks (or a command) here. said: collects what the user would read."""
    settings.setdefault("max_restarts", 0)
    return launch(
        fake_command(scene, folder) if isinstance(scene, str) else scene,
        folder,
        num_ranks=num_ranks,
        config=LaunchConfig(**settings),
        env={"PYTHONPATH": ROOT},
        say=(said if said is not None else []).append,
        tick=tick,
    )


class LauncherProcess:
    """A launcher in its own process. All processes that come of it carry a mark in their environment."""

    def __init__(
        self,
        scene: str,
        folder: RunFolder,
        wrapper: str = "",
        redirects: str = "",
        **options: Any,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self._result = folder.path / "launch-result.json"
        folder.create()
        command = [sys.executable, "-m", "tests.launch.starting", scene, str(folder.path)]
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.STDOUT)
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", f'exec {wrapper} "$@" {redirects}', "sh", *command],
            env={**os.environ, "PYTHONPATH": ROOT, MARKER: self.mark},
            cwd=ROOT,
            text=True,
            **options,
        )

    def wait_for(self, path: Path, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            assert self.process.poll() is None, f"the launcher ended early: {self.output()}"
            assert time.monotonic() < deadline, f"{path.name} did not appear"
            time.sleep(0.01)

    def output(self) -> str:
        return self.process.communicate(timeout=30)[0] or ""

    def result(self) -> dict[str, Any]:
        self.process.wait(timeout=30)
        found: dict[str, Any] = json.loads(self._result.read_text())
        return found

    def relatives(self) -> list[psutil.Process]:
        """The launcher, its ranks and all that they started, as long as they live."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            return alive and process.environ().get(MARKER) == self.mark
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def end(self) -> None:
        """For the end of a test, however it went."""
        for process in self.relatives():
            process.kill()
        self.process.wait(timeout=30)
        if self.process.stdout is not None:
            self.process.stdout.close()


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> float:
    """Waits for a condition and returns the seconds that it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout_s, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - start


def main() -> None:
    """The launcher process: runs a scene and writes down what came of it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run in the background
    folder = RunFolder(Path(sys.argv[2]))
    result = launch(
        fake_command(sys.argv[1], folder),
        folder,
        num_ranks=2,
        config=LaunchConfig(max_restarts=0),
    )
    told = {"status": result.status, "exit_code": result.exit_code, "reason": result.reason}
    (folder.path / "launch-result.json").write_text(json.dumps(told))
    sys.exit(result.exit_code)


if __name__ == "__main__":
    main()
