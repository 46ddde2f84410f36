"""The process of a rank: where it prints, how it ends, what it does with signals and a dead parent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.launch.first_cause import Failure, write_failure
from paceline.launch.lifeline import LAUNCHER
from paceline.records.folder import RunFolder
from tests.launch.starting import ROOT, run_ranks, wait_until

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


@pytest.fixture
def start(folder: RunFolder) -> Iterator[Start]:
    """Starts the process of a rank with fake work; environment by keyword."""
    started: list[subprocess.Popen[str]] = []

    def start(work: str, *prefix: str, **environ: str) -> subprocess.Popen[str]:
        command = [*(prefix or [sys.executable, "-m"]), "tests.launch.fake_work", work]
        process = subprocess.Popen(
            [*command, str(folder.path)],
            env={**os.environ, "PYTHONPATH": ROOT, **environ},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)


def failure(folder: RunFolder, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(folder.failure(0, rank).read_text())
    return found


def appears(path: Path) -> None:
    wait_until(path.exists, timeout_s=60)


def test_everything_printed_is_in_the_log_at_once(start: Start, folder: RunFolder) -> None:
    start("print_in_all_ways", RANK="3", WORLD_SIZE="4")
    appears(folder.path / "printed")
    assert folder.log(3).read_text().splitlines() == [
        "from python",
        "from native code",
        "from a child",
        "not UTF-8: \\udcff",
    ]


def test_a_users_error_is_one_sentence_in_log_and_terminal(start: Start, folder: RunFolder) -> None:
    process = start("user_error", RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
    sentence = "there is no folder photos/\n  hint: name one that exists\n"
    assert process.communicate(timeout=20)[0] == f"paceline: rank 1: {sentence}"
    assert process.returncode == 2
    assert folder.log(1).read_text() == sentence
    assert failure(folder, 1)["category"] == "user"


def test_under_our_launcher_the_terminal_stays_clean(start: Start, folder: RunFolder) -> None:
    process = start("diverge", **{LAUNCHER: str(os.getpid())})
    assert process.communicate(timeout=20)[0] == ""
    assert process.returncode == 4
    assert failure(folder)["what"] == "the loss is nan at step 7"


def test_a_crash_ends_the_rank_though_threads_and_exit_functions_hang(
    start: Start, folder: RunFolder
) -> None:
    process = start("crash_beside_things_that_hang")
    output = process.communicate(timeout=20)[0]
    assert process.returncode == 1
    assert output.splitlines()[-1] == "paceline: rank 0: ValueError: the model is wrong"
    assert "Traceback" in folder.log(0).read_text()
    told = failure(folder)
    assert (told["category"], told["type"], told["what"]) == (
        "own",
        "ValueError",
        "the model is wrong",
    )


def test_user_code_that_calls_sys_exit_has_not_finished(start: Start, folder: RunFolder) -> None:
    assert start("leave_by_sys_exit").wait(timeout=20) == 1
    assert failure(folder)["type"] == "SystemExit"


def test_a_finished_rank_ends_though_a_thread_hangs(start: Start, folder: RunFolder) -> None:
    assert start("end_beside_a_thread").wait(timeout=20) == 0
    assert folder.log(0).read_text() == "said at exit\n"
    assert list(folder.path.glob("logs/*.pid")) == []


def test_the_stack_of_a_segmentation_fault_is_in_the_log(start: Start, folder: RunFolder) -> None:
    assert start("segfault").wait(timeout=20) == -signal.SIGSEGV
    assert 'fake_work.py", line' in folder.log(0).read_text()


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGUSR1, "SIGUSR1")],
)
def test_a_request_is_heard_while_native_code_runs(
    start: Start, folder: RunFolder, number: signal.Signals, reason: str
) -> None:
    process = start("hang")
    appears(folder.path / "hanging")
    for _ in range(5):
        process.send_signal(number)
    appears(folder.path / f"heard-{reason}")
    time.sleep(0.2)
    assert process.poll() is None


def test_after_sigterm_a_rank_waits_for_no_peer_that_failed(
    start: Start, folder: RunFolder
) -> None:
    process = start("hang", RANK="0", WORLD_SIZE="2")
    appears(folder.path / "hanging")
    process.terminate()
    time.sleep(3)
    assert process.poll() is None, "peers are alive: the step may take long"
    write_failure(folder, 0, Failure(1, time.time(), "own", "ValueError", "wrong"))
    assert process.wait(timeout=10) == 1
    assert failure(folder)["category"] == "lost-connection"
    assert "waited for rank 1, which had failed" in folder.log(0).read_text()


def test_the_signals_of_a_child_are_its_own(start: Start, folder: RunFolder) -> None:
    assert start("end_a_child").wait(timeout=20) == 0
    assert "exit code -15, asked to stop: None" in folder.log(0).read_text()


@pytest.mark.parametrize("with_agent", [True, False])
def test_a_rank_does_not_outlive_its_launcher(
    start: Start, folder: RunFolder, with_agent: bool
) -> None:
    """But one that was started by hand outlives the shell, as with nohup."""
    shell = ["/bin/sh", "-c", f'"{sys.executable}" -m "$@" & wait', "sh"]
    parent = start("wait", *shell, **({"TORCHELASTIC_RUN_ID": "x"} if with_agent else {}))
    appears(folder.path / "waiting-0")
    [rank] = psutil.Process(parent.pid).children()
    parent.kill()
    if with_agent:
        assert wait_until(lambda: not rank.is_running()) < 5
    else:
        time.sleep(0.7)
        assert rank.is_running()
        rank.kill()


def test_under_torchrun_all_end_soon_after_one_is_killed(start: Start, folder: RunFolder) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m"]
    process = start("lose_a_peer", *torchrun)
    appears(folder.path / "hanging")
    begun = time.monotonic()
    output = process.communicate(timeout=25)[0]
    assert time.monotonic() - begun < 10
    assert process.returncode != 0
    assert f"training in {folder.path}" in output
    assert "which had failed" in folder.log(0).read_text()


def test_a_real_run_on_two_ranks(folder: RunFolder) -> None:
    """Everything from the launcher to the training loop, as `paceline train` puts it together."""
    folder.config.write_text(
        'device = "cpu"\n[train]\nmax_steps = 2\n[model]\nwidth = 8\n[data]\nworkers = 0\n'
    )
    command = [sys.executable, "-m", "paceline.worker", str(folder.path)]
    result = run_ranks(command, folder)
    assert result.status == "finished", result.error
    assert json.loads(folder.result.read_text())["step"] == 2
    assert folder.weights.exists()
