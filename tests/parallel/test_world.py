"""Ranks agree: the environment is read strictly, flags of one rank reach all after the same step."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from paceline.errors import UserError
from paceline.parallel.launched import launched
from paceline.parallel.world import Agreement, World, choose_device, join, leave
from tests.ranks import run_ranks


def test_not_launched() -> None:
    assert launched({}) is None


def test_launched_reads_what_torchrun_sets() -> None:
    found = launched(
        {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RESTART_COUNT": "2"}
    )
    assert found is not None
    assert (found.rank, found.local_rank, found.num_ranks, found.attempt) == (3, 1, 4, 2)


def test_a_broken_environment_is_one_sentence() -> None:
    with pytest.raises(UserError, match="not usable"):
        launched({"RANK": "x", "WORLD_SIZE": "2"})


def test_alone_every_exchange_is_the_identity() -> None:
    world = World()
    assert world.broadcast("x") == "x"
    assert world.sum_count(3) == 3
    assert Agreement(world, 2).exchange([1, 0]) == [1, 0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(UserError, match="no GPU"):
        choose_device("cuda")


def flags_of_one_rank() -> list[list[int]]:
    world = join("cpu", timeout_s=30)
    agreement = Agreement(world, 2)
    seen = [
        agreement.exchange([int(step == 2 and world.rank == 1), step * world.rank])
        for step in range(5)
    ]
    seen.append(agreement.settle())
    leave()
    return seen


def test_a_flag_of_one_rank_reaches_all_one_exchange_later() -> None:
    first, second = run_ranks(flags_of_one_rank, 2)
    assert first == second == [[0, 0], [0, 0], [0, 1], [1, 2], [0, 3], [0, 4]]


def flags_of_quick_calls() -> list[int]:
    world = join("cpu", timeout_s=30)
    agreement = Agreement(world, 1, every_s=0.1)
    seen = []
    for call in range(60):
        time.sleep(0.001 * (1 + 3 * world.rank * (call % 7 == 0)))
        seen += agreement.exchange([int(world.rank == 1 and call >= 20)])
    agreement.settle()
    leave()
    return seen


def test_quick_calls_share_exchanges_and_all_ranks_agree_on_which() -> None:
    first, second = run_ranks(flags_of_quick_calls, 2)
    assert first == second
    assert 1 not in first[:20]
    assert 1 <= sum(first) < 20  # every 16th of 40 calls, more of them on a slow machine


def exchanges() -> tuple[object, int, list[float]]:
    world = join("cpu", timeout_s=30)
    found = (
        world.broadcast({"rank": world.rank}),
        world.sum_count(world.rank + 1),
        [float(t) for t in world.gather(torch.tensor(float(world.rank)))],
    )
    leave()
    return found


def test_exchanges_of_three_ranks() -> None:
    assert run_ranks(exchanges, 3) == [({"rank": 0}, 6, [0.0, 1.0, 2.0])] * 3


def made_in_turn(folder: Path) -> tuple[float, bool]:
    """When this rank had made its part, and whether another had before; the first takes longer than the time-out."""
    world = join("cpu", timeout_s=1)
    file = folder / "downloaded"

    def make() -> bool:
        was_there = file.exists()
        if not was_there:
            time.sleep(2.0)
            file.touch()
        return was_there

    was_there = world.first_on_machine("data", make)
    made = time.monotonic()
    world.barrier()
    leave()
    return made, was_there


def test_ranks_wait_for_a_download_without_a_time_out(tmp_path: Path) -> None:
    found = run_ranks(made_in_turn, 3, tmp_path)
    assert [was_there for _, was_there in found] == [False, True, True]


def test_alone_nobody_is_waited_for() -> None:
    assert World().first_on_machine("data", lambda: 5) == 5
