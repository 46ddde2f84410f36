"""Which of several failures is shown, and in which words."""

from __future__ import annotations

import math
import signal
import traceback
from pathlib import Path

import pytest

from paceline.errors import DivergedError, ExitCode, RankFailedError, UserError
from paceline.launch.first_cause import (
    Cause,
    Failure,
    RankEnd,
    describe,
    find_first_cause,
    read_failures,
    write_failure,
)
from paceline.records.folder import RunFolder

SEEN = 100.0  # when the launcher saw the first failure
LOST = "[/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:24821"


def cause(
    *ends: RankEnd, failures: tuple[Failure, ...] = (), tails: dict[int, str] | None = None
) -> Cause:
    told = {failure.rank: failure for failure in failures}
    return find_first_cause(ends, told, tails or {}, SEEN)


def lost(rank: int, time: float) -> Failure:
    return Failure(rank, time, "lost-connection", "RuntimeError", LOST)


def own(rank: int, time: float) -> Failure:
    return Failure(rank, time, "own", "ValueError", "wrong")


def test_a_signal_comes_before_an_exception_and_that_before_a_lost_connection() -> None:
    ends = [RankEnd(0, 1, 99.1), RankEnd(1, 1, 99.2), RankEnd(2, -signal.SIGSEGV, 99.3)]
    failures = (lost(0, 99.0), own(1, 99.1))
    assert cause(*ends, failures=failures).rank == 2
    assert cause(*ends[:2], failures=failures).rank == 1
    assert cause(*ends[:1], failures=failures).rank == 0


def test_of_two_alike_the_earlier_one() -> None:
    ends = [RankEnd(0, 1, 99.5), RankEnd(1, 1, 99.5)]
    assert cause(*ends, failures=(own(0, 99.2), own(1, 99.1))).rank == 1
    assert cause(*ends, failures=(lost(0, 99.1), lost(1, 99.2))).rank == 0


def test_a_user_error_is_as_much_a_cause_as_any_exception() -> None:
    failures = (lost(0, 99.0), Failure(1, 99.2, "user", "UserError", "no folder"))
    assert cause(RankEnd(0, 1, 99.1), RankEnd(1, 2, 99.3), failures=failures).rank == 1


def test_a_signal_of_the_launcher_is_no_cause() -> None:
    sent = frozenset({signal.SIGTERM, signal.SIGKILL})
    ends = [RankEnd(0, -signal.SIGTERM, 101, sent), RankEnd(1, 1, 99.5), RankEnd(2, -9, 103, sent)]
    assert cause(*ends, failures=(lost(1, 99.4),)).rank == 1


def test_a_rank_that_the_kernel_killed_may_be_seen_to_end_last() -> None:
    sent = frozenset({signal.SIGTERM})
    ends = [RankEnd(0, 1, 99.5), RankEnd(1, -signal.SIGKILL, 101.5, sent)]
    assert cause(*ends, failures=(lost(0, 99.4),)).rank == 1


def test_a_crash_on_the_way_down_is_not_the_cause() -> None:
    sent = frozenset({signal.SIGTERM})
    ends = [RankEnd(0, -signal.SIGSEGV, 101, sent), RankEnd(1, 1, 99.5)]
    assert cause(*ends, failures=(own(1, 99.4),)).rank == 1


def test_a_crash_after_an_exception_is_told_by_the_exception() -> None:
    found = cause(RankEnd(0, -signal.SIGABRT, 99.5), failures=(own(0, 99.4),))
    assert found.sentence() == "rank 0 failed with ValueError: wrong"


def test_a_watchdog_that_aborts_over_a_lost_peer_is_not_the_cause() -> None:
    tail = (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n"
        "Fatal Python error: Aborted\n"
    )
    ends = [RankEnd(0, -signal.SIGABRT, 99.1), RankEnd(1, 1, 99.5)]
    assert cause(*ends, failures=(own(1, 99.4),), tails={0: tail}).rank == 1
    alone = cause(ends[0], tails={0: tail})
    assert alone.sentence().startswith("rank 0 was killed by SIGABRT: [Rank 0] Watchdog caught")


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (signal.SIGKILL, "out-of-memory"),
        (signal.SIGBUS, "/dev/shm"),
        (signal.SIGSEGV, "memory"),
        (signal.SIGABRT, "native code"),
    ],
)
def test_signals_are_explained(number: signal.Signals, word: str) -> None:
    error = cause(RankEnd(1, -number, 99.0)).error(RunFolder(Path("runs/a")))
    assert isinstance(error, RankFailedError)
    assert error.what == f"rank 1 was killed by {number.name} (its log: runs/a/logs/rank-1.log)"
    assert word in error.hint


def test_a_real_time_signal_has_no_name() -> None:
    assert cause(RankEnd(1, -40, 99.0)).sentence() == "rank 1 was killed by signal 40"


def test_an_exception_is_told_with_its_place() -> None:
    try:
        raise KeyError("weights")
    except KeyError as error:
        failure = describe(error, 2)
    found = cause(RankEnd(2, 1, 99.0), failures=(failure,))
    line = traceback.extract_stack()[-1].lineno
    assert line is not None
    place = f"(test_first_cause.py, line {line - 4})"
    assert found.sentence() == f"rank 2 failed with KeyError: 'weights' {place}"
    assert not found.is_final


def test_what_a_user_can_mend_is_told_in_the_ranks_own_words() -> None:
    failure = describe(UserError("there is no photos/", "name one"), 1)
    found = cause(RankEnd(1, 2, 99.0), failures=(failure,))
    error = found.error(RunFolder(Path("a")), num_restarts=2)
    assert isinstance(error, UserError)
    assert (error.what, error.hint) == ("there is no photos/", "name one")
    assert found.is_final


def test_a_diverged_run_keeps_its_exit_code() -> None:
    failure = describe(DivergedError("the loss is nan", "lower optim.base_lr"), 0)
    error = cause(RankEnd(0, 4, 99.0), failures=(failure,)).error(RunFolder(Path("a")))
    assert (error.exit_code, error.what) == (ExitCode.DIVERGED, "the loss is nan")


def test_an_exit_code_for_users_without_a_word_is_not_tried_again() -> None:
    found = cause(RankEnd(0, 2, 99.0), tails={0: "usage: worker\nerror: no such option\n"})
    assert found.is_final
    error = found.error(RunFolder(Path("a")))
    assert error.exit_code == ExitCode.USER
    assert "exit code 2 after it had printed 'error: no such option'" in error.what


@pytest.mark.parametrize(
    "text",
    [
        LOST,
        "[/gloo/transport/tcp/pair.cc:534] Read error [127.0.0.1]:1: Connection reset by peer",
        "[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation",
        "wait timeout after 300000ms, keys: /default_pg/0/0",
        "failed to recv, got 0 bytes. Connection was likely closed. Did the server crash?",
        "NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error",
        "Gloo connectFullMesh failed with [/gloo/transport/tcp/pair.cc:144] no error",
    ],
)
def test_words_of_lost_connections(text: str) -> None:
    assert describe(RuntimeError(text), 0).category == "lost-connection"


def test_a_lost_connection_below_another_error_is_still_one() -> None:
    wrapped = RuntimeError("the exchange failed")
    wrapped.__cause__ = RuntimeError(LOST)
    assert describe(wrapped, 0).category == "lost-connection"


def test_torchs_own_error_types_are_lost_connections() -> None:
    import torch.distributed as dist

    assert describe(dist.DistNetworkError("something"), 0).category == "lost-connection"


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("Connection reset by peer"),  # of a data source over the network
        ValueError("Connection closed by peer"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (64x512 and 256x10)"),
    ],
)
def test_errors_of_a_ranks_own(error: Exception) -> None:
    assert describe(error, 0).category == "own"


@pytest.mark.parametrize(
    "text",
    [
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's"
        " workers are out of shared memory. Please try to raise your shared memory limit.",
        "unable to write to file </torch_7_1_0>: No space left on device (28)",
        "unable to allocate shared memory(shm) for file </torch_7>: No space left on device (28)",
    ],
)
def test_too_little_shared_memory_is_the_users_to_mend(text: str) -> None:
    failure = describe(RuntimeError(text), 0)
    assert failure.category == "user"
    assert "/dev/shm" in failure.what
    assert "data.workers=0" in failure.hint


def test_a_full_disk_is_not_taken_for_shared_memory() -> None:
    assert describe(OSError(28, "No space left on device", "runs/a/x"), 0).category == "own"


def test_too_little_gpu_memory_is_the_users_to_mend() -> None:
    kind = type("OutOfMemoryError", (RuntimeError,), {})
    failure = describe(kind("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"), 0)
    assert (failure.category, failure.hint) == ("user", "lower parallel.micro_batch")
    assert "Tried to allocate 2.00 GiB." in failure.what


def test_failures_are_read_as_they_were_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    failure = describe(ValueError("größer"), 3)
    write_failure(folder, 1, failure)
    assert read_failures(folder, 1, range(4)) == {3: failure}
    assert read_failures(folder, 0, range(4)) == {}


def test_long_words_are_cut() -> None:
    assert len(describe(ValueError("x" * 5000), 0).what) <= 300


def test_a_failure_that_nobody_saw_coming_has_an_end() -> None:
    found = find_first_cause([RankEnd(0, 1, 5.0)], {}, {}, math.inf)
    assert found.sentence() == "rank 0 ended with exit code 1, without a word"
