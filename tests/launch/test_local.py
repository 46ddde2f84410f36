"""How ranks on one machine start, restart, stop and end, with real processes and signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from paceline.errors import DivergedError, ExitCode, RankFailedError, UserError
from paceline.launch.local import LaunchResult
from paceline.records.folder import RunFolder
from tests.launch.starting import LauncherProcess, run_ranks, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Whatever a launch starts has ended when it returns, and signals are as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    running = set(psutil.Process().children(recursive=True))  # the fork server of earlier tests
    yield
    assert set(psutil.Process().children(recursive=True)) <= running
    assert "paceline-agent" not in {thread.name for thread in threading.enumerate()}
    assert before == {number: signal.getsignal(number) for number in before}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C is heard, even where the tests run in the background of a shell that ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def launcher() -> Iterator[Callable[..., LauncherProcess]]:
    started: list[LauncherProcess] = []

    def start(scene: str, folder: RunFolder, **options: object) -> LauncherProcess:
        started.append(LauncherProcess(scene, folder, **options))
        return started[-1]

    yield start
    for process in started:
        process.end()


class Press:
    """Sends this process a signal when a file of the run appears; a `tick` of the launcher."""

    def __init__(self, *steps: tuple[Path, signal.Signals]) -> None:
        self._steps = list(steps)
        self.at = 0.0

    def __call__(self) -> None:
        if self._steps and self._steps[0][0].exists() and time.monotonic() > self.at + 0.4:
            self.at = time.monotonic()
            os.kill(os.getpid(), self._steps.pop(0)[1])


def written(folder: RunFolder) -> dict[str, object]:
    found: dict[str, object] = json.loads(folder.result.read_text())
    return found


# How ranks end by themselves


def test_ranks_that_end_well(folder: RunFolder) -> None:
    result = run_ranks("end_well", folder)
    assert result == LaunchResult("finished", ExitCode.OK, "", 0)
    assert folder.log(1).read_text() == "rank 1 of attempt 0\n"


def test_a_crash_is_restarted_and_the_run_succeeds(folder: RunFolder) -> None:
    said: list[str] = []
    result = run_ranks("crash_once", folder, max_restarts=2, said=said)
    assert (result.status, result.exit_code, result.num_restarts) == ("finished", ExitCode.OK, 1)
    [sentence] = said
    assert "rank 1 failed with ValueError: the first attempt fails (fake_ranks.py, line" in sentence
    assert "restart 1 of at most 2" in sentence
    assert "Traceback" in folder.log(1).read_text()


def test_a_crash_after_the_last_restart_ends_the_run(folder: RunFolder) -> None:
    result = run_ranks("crash", folder, max_restarts=2)
    assert (result.status, result.exit_code) == ("failed", ExitCode.RANK_FAILED)
    assert isinstance(result.error, RankFailedError)
    assert "rank 1 failed with ValueError: attempt 2 fails" in result.error.what
    assert f"after 2 restarts (its log: {folder.log(1)})" in result.error.what
    assert folder.log(1).read_text().count("Traceback") == 3
    assert written(folder)["status"] == "failed"


def test_an_exit_code_without_a_word_of_why(folder: RunFolder) -> None:
    error = run_ranks("leave_with_code", folder).error
    assert error is not None
    assert "rank 1 ended with exit code 17 after it had printed 'the last words'" in error.what


def test_a_users_error_is_not_tried_again(folder: RunFolder) -> None:
    result = run_ranks("user_error", folder, max_restarts=3)
    assert isinstance(result.error, UserError)
    assert (result.error.what, result.error.hint, result.num_restarts) == (
        "there is no folder photos/",
        "name one that exists",
        0,
    )
    assert result.exit_code == ExitCode.USER


def test_a_defect_that_repeats_itself_is_tried_again_once(folder: RunFolder) -> None:
    said: list[str] = []
    result = run_ranks("crash_the_same_way", folder, num_ranks=1, max_restarts=3, said=said)
    assert (result.status, result.num_restarts) == ("failed", 1)
    assert said[-1] == "the same error a second time, with nothing saved in between"


def test_the_same_error_after_progress_is_tried_again(folder: RunFolder) -> None:
    result = run_ranks("crash_the_same_way_further_on", folder, num_ranks=1, max_restarts=2)
    assert (result.status, result.num_restarts) == ("failed", 2)


def test_a_diverged_run_is_not_tried_again(folder: RunFolder) -> None:
    result = run_ranks("diverge", folder, max_restarts=3)
    assert isinstance(result.error, DivergedError)
    assert (result.exit_code, result.num_restarts) == (ExitCode.DIVERGED, 0)


def test_a_rank_that_ignores_sigterm_ends_with_the_others(folder: RunFolder) -> None:
    start = time.monotonic()
    result = run_ranks("crash_beside_a_deaf_rank", folder)
    assert time.monotonic() - start < 10
    assert result.error is not None
    assert "rank 1 failed with ValueError: the cause" in result.error.what


def test_a_killed_rank_is_the_cause_though_the_other_loses_its_connection(
    folder: RunFolder,
) -> None:
    """And after a restart, ranks meet again over gloo."""
    said: list[str] = []
    result = run_ranks("lose_a_peer_once", folder, max_restarts=1, said=said)
    assert said[0].startswith("rank 1 was killed by SIGKILL; restart 1 of at most 1")
    told = json.loads(folder.failure(0, 0).read_text())
    assert told["category"] == "lost-connection"
    assert (result.status, result.num_restarts) == ("finished", 1)
    assert "the sum is 2" in folder.log(0).read_text()


def test_a_segmentation_fault_is_named(folder: RunFolder) -> None:
    error = run_ranks("segfault", folder).error
    assert error is not None
    assert "rank 1 was killed by SIGSEGV" in error.what


def test_what_a_rank_started_ends_with_it(folder: RunFolder) -> None:
    assert run_ranks("end_beside_children", folder).status == "finished"


def test_a_command_that_cannot_be_run(folder: RunFolder) -> None:
    from paceline.config.schema import LaunchConfig
    from paceline.launch.local import launch

    result = launch(["/no/such/program"], folder, num_ranks=2, config=LaunchConfig(max_restarts=0))
    assert result.error is not None
    assert "ended with exit code 127" in result.error.what
    assert "/no/such/program" in result.error.what


def test_a_busy_port_is_a_users_error(folder: RunFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(UserError, match=f"launch.port = {port} cannot be used"):
            run_ranks("end_well", folder, port=port)


def test_a_port_can_be_used_again_at_once(folder: RunFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    for _ in range(2):
        assert run_ranks("end_well", folder, port=port).status == "finished"


def test_an_earlier_launch_in_the_same_folder_is_not_mistaken_for_this_one(
    folder: RunFolder,
) -> None:
    assert run_ranks("crash", folder).status == "failed"
    assert run_ranks("segfault", folder).reason.startswith("rank 1 was killed by SIGSEGV")
    assert run_ranks("end_well", folder).status == "finished"


def test_torchs_own_words_are_kept_from_the_user(
    folder: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    run_ranks("crash_once", folder, max_restarts=1)
    assert capfd.readouterr() == ("", "")
    assert "rank 1 failed" in (folder.path / "logs" / "launcher.log").read_text()


# Stopping


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGINT, "Ctrl-C"),
        (signal.SIGTERM, "SIGTERM"),
        (signal.SIGUSR1, "SIGUSR1"),
        (signal.SIGHUP, "hang-up (SIGHUP)"),
    ],
)
def test_a_first_signal_lets_the_ranks_save(
    folder: RunFolder, number: signal.Signals, reason: str
) -> None:
    said: list[str] = []
    press = Press((folder.path / "ready-0-1", number))
    result = run_ranks("stop_when_asked", folder, said=said, tick=press)
    assert (result.status, result.exit_code) == ("stopped", ExitCode.RESUME)
    assert (result.reason, written(folder)["reason"], written(folder)["step"]) == (
        reason,
        reason,
        3,
    )
    assert said[0].startswith(f"{reason}: the ranks finish their step, save and end")


def test_a_storm_of_sigterm_is_one_request(folder: RunFolder) -> None:
    ready = folder.path / "ready-0-1"

    def storm() -> None:
        if ready.exists():
            for _ in range(20):
                os.kill(os.getpid(), signal.SIGTERM)

    result = run_ranks("stop_when_asked", folder, tick=storm)
    assert (result.status, result.reason) == ("stopped", "SIGTERM")


@pytest.mark.usefixtures("interruptible")
def test_a_second_ctrl_c_ends_at_once(folder: RunFolder) -> None:
    ready = folder.path / "ready-0-1"
    press = Press((ready, signal.SIGINT), (ready, signal.SIGINT))
    result = run_ranks("ignore_stop", folder, max_restarts=3, tick=press)
    assert time.monotonic() - press.at < 2.5
    assert (result.status, result.exit_code) == ("interrupted", ExitCode.INTERRUPTED)


@pytest.mark.usefixtures("interruptible")
def test_one_press_that_arrives_twice_is_one_press(folder: RunFolder) -> None:
    ready = folder.path / "ready-0-1"

    def press_twice() -> None:
        if ready.exists() and not twice:
            twice.append(True)
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    twice: list[bool] = []
    assert run_ranks("stop_when_asked", folder, tick=press_twice).status == "stopped"


def test_a_stop_while_ranks_cannot_listen_yet_reaches_them(folder: RunFolder) -> None:
    press = Press((folder.path / "started-1", signal.SIGUSR1))
    result = run_ranks("stop_after_a_slow_start", folder, tick=press)
    assert (result.status, result.exit_code) == ("stopped", ExitCode.RESUME)
    assert written(folder)["step"] == 3, "the ranks were ended, not asked"


def test_a_stop_while_ranks_are_being_restarted(folder: RunFolder) -> None:
    press = Press((folder.path / "told-to-end", signal.SIGTERM))
    result = run_ranks("crash_beside_a_deaf_rank", folder, max_restarts=3, tick=press)
    assert (result.status, result.exit_code) == ("stopped", ExitCode.RESUME)
    assert result.num_restarts == 0
    assert result.reason.startswith("SIGTERM while ranks were restarted: rank 1 failed with")
    assert written(folder)["status"] == "stopped"


def test_a_failure_while_stopping_is_told_and_not_restarted(folder: RunFolder) -> None:
    press = Press((folder.path / "ready-0-0", signal.SIGTERM))
    result = run_ranks("fail_when_asked", folder, max_restarts=3, tick=press)
    assert (result.status, result.num_restarts) == ("failed", 0)
    assert result.error is not None
    assert "rank 0 failed with OSError: no space" in result.error.what


def test_outside_the_main_thread_signals_are_left_alone(folder: RunFolder) -> None:
    results: list[LaunchResult] = []
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def run() -> None:
        tick = lambda: seen.append(signal.getsignal(signal.SIGTERM))  # noqa: E731
        results.append(run_ranks("crash_once", folder, max_restarts=1, tick=tick))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results[0].status == "finished"
    assert set(seen) == {before}


def test_an_error_of_the_display_ends_the_ranks(folder: RunFolder) -> None:
    def fail() -> None:
        raise RuntimeError("the display is broken")

    with pytest.raises(RuntimeError, match="the display is broken"):
        run_ranks("ignore_stop", folder, tick=fail)


def test_a_lost_terminal_does_not_end_the_run(folder: RunFolder) -> None:
    def fail() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    assert run_ranks("end_well", folder, tick=fail).status == "finished"


# The launcher's own process


def test_a_killed_launcher_leaves_no_process(
    folder: RunFolder, launcher: Callable[..., LauncherProcess]
) -> None:
    process = launcher("start_children", folder)
    for rank in range(2):
        process.wait_for(folder.path / f"ready-0-{rank}")
    assert len(process.relatives()) == 1 + 1 + 2 + 4, "launcher, guard, ranks, their children"
    process.process.kill()
    assert wait_until(lambda: process.relatives() == []) < 5


def test_ctrl_c_at_a_terminal(folder: RunFolder, launcher: Callable[..., LauncherProcess]) -> None:
    ours, theirs = os.openpty()
    process = launcher(
        "stop_when_asked",
        folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        wrapper="setsid --ctty --wait",
    )
    os.close(theirs)
    try:
        process.wait_for(folder.path / "ready-0-1")
        os.write(ours, b"\x03")
        assert process.result()["exit_code"] == ExitCode.RESUME
        assert written(folder)["reason"] == "Ctrl-C"
    finally:
        os.close(ours)


def test_without_a_terminal_and_with_closed_streams(
    folder: RunFolder, launcher: Callable[..., LauncherProcess]
) -> None:
    process = launcher(
        "stop_when_asked",
        folder,
        wrapper="nohup",
        redirects="<&- >&- 2>&-",
        start_new_session=True,
    )
    process.wait_for(folder.path / "ready-0-1")
    process.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    process.process.send_signal(signal.SIGTERM)
    assert process.result()["reason"] == "SIGTERM"
