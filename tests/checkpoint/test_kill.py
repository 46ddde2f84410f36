"""SIGKILL at every point of a save: what was whole stays whole, and the next run goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from paceline.checkpoint import PHASES, Store, candidates, newest_whole, open_checkpoint
from tests.checkpoint.helpers import (
    assert_holds,
    join,
    kill_me,
    run_to_the_end,
    save_one,
    set_rank,
    state_of,
    step_names,
    tensors_of,
)
from tests.ranks import free_port


def save_until_killed(folder: Path, victim: int, at: str, steps: list[int], *place: int) -> None:
    """Saves steps; the victim is killed at phase `at` of the last. place: rank, ranks, port."""
    rank, num_ranks, group = 0, 1, None
    if place:
        set_rank(*place)
        rank, num_ranks, group = join(timeout_s=10)
    last = False

    def kill(phase: str) -> None:
        if last and phase == at and rank == victim:
            kill_me()

    store = Store(folder, rank=rank, num_ranks=num_ranks, group=group, keep_last=1, on_phase=kill)
    for number, step in enumerate(steps):
        store.wait()
        last = number == len(steps) - 1
        store.save(step, tensors_of(step, rank), state_of(step) | {"number": number})
    store.wait()


def check_and_go_on(folder: Path, expected: tuple[int, int], num_ranks: int) -> None:
    """Every complete checkpoint is whole, the newest is the expected one, and saving goes on."""
    assert candidates(folder)
    for path in candidates(folder):
        open_checkpoint(path)
    newest, passed_over = newest_whole(folder)
    assert newest is not None
    assert passed_over == []
    checkpoint = open_checkpoint(newest)
    assert (checkpoint.step, checkpoint.state["number"]) == expected
    assert torch.equal(checkpoint.read("model/bias"), torch.arange(8) + expected[0])
    assert len([name for name in checkpoint.names() if "generator" in name]) == num_ranks
    again = save_one(folder, expected[0], keep_last=1)
    assert_holds(again, expected[0])
    assert step_names(folder) == [f"step-{expected[0]:08d}"]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("steps", [[1, 2], [1, 2, 2]], ids=["a new step", "a step again"])
def test_killed_alone(tmp_path: Path, phase: str, steps: list[int]) -> None:
    assert run_to_the_end(save_until_killed, (tmp_path, 0, phase, steps)) == [-signal.SIGKILL]
    done = phase in ("renamed", "removing", "prune")
    number = len(steps) - (1 if done else 2)
    check_and_go_on(tmp_path, (steps[number], number), num_ranks=1)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("phase", ["snapshot", "writing", "rename", "renamed"])
def test_one_of_two_killed(tmp_path: Path, victim: int, phase: str) -> None:
    port = free_port()
    codes = run_to_the_end(
        save_until_killed, *((tmp_path, victim, phase, [1, 2], rank, 2, port) for rank in (0, 1))
    )
    assert codes[victim] == -signal.SIGKILL
    assert codes[1 - victim] != 0  # it was told, and has not waited for the timeout of the test
    # Rank 1 dies in the last phases while rank 0 completes the checkpoint.
    done = phase == "renamed" or (victim == 1 and phase == "rename")
    check_and_go_on(tmp_path, (2, 1) if done else (1, 0), num_ranks=2)


def save_forever(folder: Path, first: int) -> None:
    with Store(folder, keep_last=1, keep_best=False) as store:
        for step in range(first, first + 1_000_000):
            store.save(step % 7, tensors_of(step % 7), state_of(step % 7))


def test_killed_at_any_instant(tmp_path: Path) -> None:
    """One process after another saves over what the last one left, and is killed at some time."""
    save_one(tmp_path, 0)
    for attempt in range(12):
        killed = _kill_after(tmp_path, 0.02 + 0.013 * attempt)
        assert killed == -signal.SIGKILL
        path, passed_over = newest_whole(tmp_path)
        assert path is not None
        assert passed_over == []
        assert_holds(path, open_checkpoint(path).step)


def _kill_after(folder: Path, seconds: float) -> int:
    """Kills a saving process that long after its first save is seen."""

    def watch() -> None:
        before = {path.name for path in folder.iterdir()}
        while {path.name for path in folder.iterdir()} == before:
            time.sleep(0.001)
        time.sleep(seconds)
        os.kill(int((folder.parent / "pid").read_text()), signal.SIGKILL)

    watcher = threading.Thread(target=watch)
    watcher.start()
    (code,) = run_to_the_end(_save_with_pid, (folder,))
    watcher.join()
    return code


def _save_with_pid(folder: Path) -> None:
    (folder.parent / "pid").write_text(str(os.getpid()))
    save_forever(folder, 1)
