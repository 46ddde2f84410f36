"""Saving with ranks over gloo: who writes what, one verdict, ranks that fail, die or hang."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from paceline.checkpoint import (
    SaveReport,
    Store,
    candidates,
    local_slices,
    newest_whole,
    open_checkpoint,
)
from paceline.errors import RankFailedError
from tests.checkpoint.helpers import (
    assert_holds,
    assert_same,
    join,
    run_to_the_end,
    set_rank,
    state_of,
    step_names,
    tensors_of,
)
from tests.ranks import free_port, run_ranks


def keys_of(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return sorted(file.keys())


def save_steps(folder: Path, *steps: int) -> list[SaveReport]:
    rank, num_ranks, group = join()
    with Store(folder, rank=rank, num_ranks=num_ranks, group=group) as store:
        for step in steps:
            store.save(
                step, tensors_of(step, rank), state_of(step) if rank == 0 else {"rank": rank}
            )
    return store.finished()


def test_ranks_write_what_is_theirs_and_report_the_same(tmp_path: Path) -> None:
    reports = run_ranks(save_steps, 3, tmp_path, 1, 2, 3)
    assert reports[0] == reports[1] == reports[2]
    assert [(report.step, report.ok) for report in reports[0]] == [(1, True), (2, True), (3, True)]
    assert step_names(tmp_path) == ["step-00000002", "step-00000003"]
    path = tmp_path / "step-00000003"
    assert_holds(path, 3, num_ranks=3)
    assert keys_of(path / "rank-0.safetensors") == sorted(tensors_of(3, 0))
    assert keys_of(path / "rank-2.safetensors") == ["rank-2/generator/torch"]


# --- tensors in parts


def whole_tensors() -> dict[str, Tensor]:
    return {
        "even": torch.arange(24.0).reshape(6, 4),
        "odd": torch.arange(15, dtype=torch.int64).reshape(5, 3),
        "few": torch.arange(1.0),  # fewer rows than ranks
        "none": torch.empty(0, 3),
        "columns": torch.arange(14).reshape(2, 7).to(torch.bfloat16),
        "copied": torch.arange(6.0),
        "plain": torch.tensor(3.0),
    }


def save_parts(folder: Path) -> None:
    rank, num_ranks, group = join()
    mesh = init_device_mesh("cpu", (num_ranks,))
    placed = {"columns": Shard(1), "copied": Replicate()}
    tensors = whole_tensors()
    parts: dict[str, Tensor] = {
        name: distribute_tensor(tensor, mesh, [placed.get(name, Shard(0))])
        for name, tensor in tensors.items()
        if name != "plain"
    }
    parts["plain"] = tensors["plain"]
    with Store(folder, rank=rank, num_ranks=num_ranks, group=group) as store:
        store.save(1, parts, {})
    assert store.finished()[0].ok


def load_parts(path: Path) -> dict[str, Tensor]:
    """Reads this rank's part of every tensor under another sharding, into DTensors."""
    rank, num_ranks, _ = join()
    mesh = init_device_mesh("cpu", (num_ranks,))
    checkpoint = open_checkpoint(path, verify=rank == 0)
    result = {}
    for name, tensor in whole_tensors().items():
        if name != "plain":
            fresh = distribute_tensor(torch.zeros_like(tensor), mesh, [Shard(tensor.dim() - 1)])
            part = checkpoint.read(name, local_slices(fresh))
            assert part.shape == fresh.to_local().shape
            fresh.to_local().copy_(part)
            result[name] = fresh.full_tensor()
    return result


def test_parts_of_two_ranks_load_whole_on_one_and_in_parts_on_three(tmp_path: Path) -> None:
    run_ranks(save_parts, 2, tmp_path)
    path = tmp_path / "step-00000001"
    assert_same(open_checkpoint(path).load(), whole_tensors())
    assert keys_of(path / "rank-0.safetensors") == sorted({*whole_tensors()} - {"none"})
    assert keys_of(path / "rank-1.safetensors") == ["columns", "even", "odd"]
    expected = {name: tensor for name, tensor in whole_tensors().items() if name != "plain"}
    for loaded in run_ranks(load_parts, 3, path):
        assert_same(loaded, expected)


def save_on_a_grid(folder: Path) -> None:
    """Four ranks: rows over one axis, copies or columns or finer rows over the other."""
    rank, num_ranks, group = join()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    whole = torch.arange(7 * 5).reshape(7, 5)
    tensors = {
        "copies of rows": distribute_tensor(whole, mesh, [Replicate(), Shard(0)]),
        "rows of copies": distribute_tensor(whole, mesh, [Shard(0), Replicate()]),
        "boxes": distribute_tensor(whole, mesh, [Shard(1), Shard(0)]),
        "rows of rows": distribute_tensor(whole, mesh, [Shard(0), Shard(0)]),
    }
    with Store(folder, rank=rank, num_ranks=num_ranks, group=group) as store:
        store.save(1, tensors, {})
        with pytest.raises(ValueError, match="'sum' is placed as P"):
            store.save(2, {"sum": DTensor.from_local(torch.ones(2), mesh, [Partial()] * 2)}, {})


def test_copies_of_a_part_are_written_once(tmp_path: Path) -> None:
    run_ranks(save_on_a_grid, 4, tmp_path)
    path = tmp_path / "step-00000001"
    whole = torch.arange(7 * 5).reshape(7, 5)
    names = ["copies of rows", "rows of copies", "boxes", "rows of rows"]
    assert_same(open_checkpoint(path).load(), dict.fromkeys(names, whole))
    assert keys_of(path / "rank-1.safetensors") == ["boxes", "copies of rows", "rows of rows"]
    assert keys_of(path / "rank-2.safetensors") == ["boxes", "rows of copies", "rows of rows"]


# --- ranks that disagree, fail, die, hang


def save_what_differs(folder: Path, kind: str) -> tuple[str, list[SaveReport]]:
    rank, num_ranks, group = join()
    tensors = {"a": torch.zeros(2)}
    if rank == 1:
        tensors = {"shape": {"a": torch.zeros(3)}, "name": {"b": torch.zeros(2)}}[kind]
    store = Store(folder, rank=rank, num_ranks=num_ranks, group=group)
    store.save(1, tensors, {})
    try:
        store.wait()
    except ValueError as error:
        return str(error), store.finished()
    return "", store.finished()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("shape", "tensor 'a' is F32 [2] on rank 0, but F32 [3] on rank 1"),
        ("name", "tensor 'a' was not given by the ranks [1]"),
    ],
)
def test_tensors_that_differ_between_ranks_are_an_error(
    tmp_path: Path, kind: str, message: str
) -> None:
    (error, reports), (_, other_reports) = run_ranks(save_what_differs, 2, tmp_path, kind)
    assert error == message
    assert message in str(reports[0].error)
    assert reports == other_reports
    assert step_names(tmp_path) == []


def save_with_a_limit(folder: Path, limited: int) -> list[SaveReport]:
    """Rank `limited` cannot write large files during step 2, as on a full disk."""
    rank, num_ranks, group = join()
    with Store(folder, rank=rank, num_ranks=num_ranks, group=group) as store:
        for step in (1, 2, 3):
            store.wait()
            if rank == limited:
                _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000 if step == 2 else hard, hard))
            big = {f"rank-{rank}/big": torch.full((50_000,), float(step))}
            store.save(step, tensors_of(step, rank) | big, state_of(step))
    return store.finished()


@pytest.mark.parametrize("limited", [0, 1])
def test_a_rank_that_cannot_write_is_told_by_all_and_training_goes_on(
    tmp_path: Path, limited: int
) -> None:
    reports = run_ranks(save_with_a_limit, 2, tmp_path, limited)
    assert reports[0] == reports[1]
    assert [report.ok for report in reports[0]] == [True, False, True]
    reason = f"step 2 was not saved: rank {limited}: File too large"
    assert str(reports[0][1].error).startswith(reason)
    assert step_names(tmp_path) == ["step-00000001", "step-00000003"]
    assert newest_whole(tmp_path) == (tmp_path / "step-00000003", [])


def save_into_a_lost_folder(folder: Path) -> list[SaveReport]:
    rank, num_ranks, group = join()
    with Store(folder, rank=rank, num_ranks=num_ranks, group=group) as store:
        if rank == 0:
            folder.rename(folder.with_name("moved"))
        store.save(1, tensors_of(1, rank), {})
    return store.finished()


def test_a_folder_that_is_gone_is_told_by_all(tmp_path: Path) -> None:
    reports = run_ranks(save_into_a_lost_folder, 2, tmp_path / "checkpoints")
    assert reports[0] == reports[1]
    assert "step 1 was not saved: rank 0: No such file" in str(reports[0][0].error)


def lose_a_rank(rank: int, port: int, folder: Path, how: str) -> None:
    set_rank(rank, 2, port)
    rank, num_ranks, group = join(timeout_s=30 if how == "dies" else 3)

    second = False

    def stay_away(phase: str) -> None:
        if second and rank == 1 and phase == "writing":
            os._exit(9) if how == "dies" else time.sleep(5)

    store = Store(folder, rank=rank, num_ranks=num_ranks, group=group, on_phase=stay_away)
    store.save(1, tensors_of(1, rank), state_of(1))
    store.wait()
    second = True
    began = time.monotonic()
    store.save(2, tensors_of(2, rank), state_of(2))
    assert time.monotonic() - began < 1  # the caller is not held up
    try:
        store.wait()
    except RankFailedError as error:
        seconds = time.monotonic() - began
        (folder / f"error-{rank}").write_text(f"{seconds} {error}")
        dist.destroy_process_group()


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_lost_rank_is_an_error_of_the_others_within_the_timeout(tmp_path: Path, how: str) -> None:
    port = free_port()
    codes = run_to_the_end(lose_a_rank, *((rank, port, tmp_path, how) for rank in (0, 1)))
    assert codes[0] == 0
    seconds, _, text = (tmp_path / "error-0").read_text().partition(" ")
    assert float(seconds) < 8
    assert text.startswith("rank 0 lost the other ranks while saving step 2: ")
    assert candidates(tmp_path) == [tmp_path / "step-00000001"]
    assert_holds(tmp_path / "step-00000001", 1, num_ranks=2)
