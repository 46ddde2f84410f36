"""What a control group leaves free, of both versions, and limits of the process itself."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

from paceline.parallel.budget import free_bytes, group_free, leave_free
from tests.loop.shortages import data_bytes
from tests.ranks import run_ranks

MIB = 1 << 20


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_every_group_above_the_process_counts(tmp_path: Path) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "membership"
    group(
        root / "job",
        memory__max="1000\n",
        memory__current="900\n",
        memory__stat="inactive_file 300\n",
    )
    group(root / "job/rank", memory__max="max\n", memory__current="5\n", memory__stat="anon 5\n")
    group(
        root / "memory/old",
        memory__limit_in_bytes="700\n",
        memory__usage_in_bytes="100\n",
        memory__stat="cache 1\ntotal_inactive_file 50\n",
    )
    membership.write_text("0::/job/rank\n7:cpu,cpuacct:/\n4:memory:/old\n")
    assert group_free(membership, root) == [400, 650]
    assert group_free(tmp_path / "missing", root) == []


def test_a_limit_stands_for_the_edge_of_a_gpu() -> None:
    free, got, refused = run_ranks(under_a_limit, 1)[0]
    assert 250 * MIB < free <= 256 * MIB
    assert got and refused


def under_a_limit() -> tuple[int, bool, bool]:
    cpu, hard = torch.device("cpu"), resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + 256 * MIB, hard))
    free = free_bytes(cpu, 1)
    leave_free(cpu, 1, 0.5)
    torch.empty(100 * MIB, dtype=torch.uint8)
    try:
        torch.empty(200 * MIB, dtype=torch.uint8)
    except RuntimeError:
        return free, True, True
    return free, True, False
