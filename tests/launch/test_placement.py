"""How cores are shared out among ranks, on machines planted below a folder."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.launch.placement import (
    Share,
    cgroup_quota,
    core_of_cpu,
    gpu_cores,
    order_by_core,
    parse_cpulist,
    place,
    share_out,
    usable_cores,
)
from tests.launch.starting import ROOT

FOUR = [(0,), (1,), (2,), (3,)]


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def plant_cores(root: Path, cores: dict[int, tuple[int, int]]) -> Path:
    files = {}
    for cpu, (package, core) in cores.items():
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files[f"{topology}/physical_package_id"] = f"{package}\n"
        files[f"{topology}/core_id"] = f"{core}\n"
    return plant(root, files)


def test_cores_are_cut_into_neighbours() -> None:
    assert share_out(FOUR, 2) == [Share(2, (0, 1)), Share(2, (2, 3))]
    assert share_out(FOUR, 3) == [Share(1, (0,)), Share(1, (1,)), Share(2, (2, 3))]


def test_every_core_is_used_once() -> None:
    cores = [(cpu,) for cpu in range(61)]
    shares = share_out(cores, 8)
    assert sorted(cpu for share in shares for cpu in share.cores) == list(range(61))
    assert {share.threads for share in shares} == {7, 8}


def test_a_single_rank_has_all_threads_and_stays_unbound() -> None:
    assert share_out(FOUR, 1) == [Share(4)]


def test_more_ranks_than_cores_stay_unbound() -> None:
    assert share_out(FOUR, 5) == [Share(1)] * 5


def test_affinity_can_be_off() -> None:
    assert share_out(FOUR, 2, bind=False) == [Share(2), Share(2)]


def test_threads_of_the_configuration_win() -> None:
    assert share_out(FOUR, 2, threads=7) == [Share(7, (0, 1)), Share(7, (2, 3))]


def test_threads_fit_into_the_quota_of_a_container() -> None:
    cores = [(cpu,) for cpu in range(64)]
    assert [share.threads for share in share_out(cores, 2, quota=5.0)] == [2, 2]
    assert [share.threads for share in share_out(cores, 2, quota=0.5)] == [1, 1]


def test_two_ranks_never_share_a_core_with_two_hardware_threads(tmp_path: Path) -> None:
    root = plant_cores(tmp_path, {cpu: (0, cpu % 4) for cpu in range(8)})
    cores = order_by_core(range(8), core_of_cpu(range(8), root))
    assert cores == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert share_out(cores, 2) == [Share(2, (0, 1, 4, 5)), Share(2, (2, 3, 6, 7))]


def test_cores_of_one_package_stay_together(tmp_path: Path) -> None:
    root = plant_cores(tmp_path, {cpu: (cpu % 2, cpu) for cpu in range(8)})
    cores = order_by_core(range(8), core_of_cpu(range(8), root))
    assert share_out(cores, 2) == [Share(4, (0, 2, 4, 6)), Share(4, (1, 3, 5, 7))]


def test_cores_of_an_unknown_machine_are_taken_as_they_come(tmp_path: Path) -> None:
    assert core_of_cpu([0, 3], tmp_path) == {0: (0, 0), 3: (0, 3)}


def plant_gpus(root: Path, cpulists: list[str]) -> Path:
    files = {}
    for number, cpulist in enumerate(cpulists):
        bus = f"0000:{number * 16 + 10:02X}:00.0"
        files[f"proc/driver/nvidia/gpus/{bus}/information"] = f"GPU UUID: \t GPU-{number}\n"
        files[f"sys/bus/pci/devices/{bus.lower()}/local_cpulist"] = cpulist
    return plant(root, files)


def test_ranks_are_bound_next_to_their_gpus(tmp_path: Path) -> None:
    root = plant_gpus(tmp_path, ["4-7\n", "4-7\n", "0-3\n", "0-3\n"])
    near = gpu_cores(4, {}, root)
    cores = [(cpu,) for cpu in range(8)]
    shares = share_out(cores, 4, near=near)
    assert [share.cores for share in shares] == [(4, 5), (6, 7), (0, 1), (2, 3)]


def test_cuda_visible_devices_chooses_and_orders_gpus(tmp_path: Path) -> None:
    root = plant_gpus(tmp_path, ["0-3", "4-7", "8-11"])
    second, third = frozenset(range(4, 8)), frozenset(range(8, 12))
    assert gpu_cores(2, {"CUDA_VISIBLE_DEVICES": "2,1"}, root) == [third, second]
    assert gpu_cores(1, {"CUDA_VISIBLE_DEVICES": "GPU-1"}, root) == [second]
    assert gpu_cores(2, {"CUDA_VISIBLE_DEVICES": "1"}, root) == []
    assert gpu_cores(1, {"CUDA_VISIBLE_DEVICES": ""}, root) == []


def test_gpus_without_known_neighbours_fall_back_to_slices(tmp_path: Path) -> None:
    assert gpu_cores(2, {}, plant_gpus(tmp_path, ["0-3", ""])) == []
    assert gpu_cores(1, {}, tmp_path / "none") == []


def test_a_container_without_the_cores_next_to_a_gpu_falls_back_to_slices() -> None:
    near = [frozenset({8, 9}), frozenset({8, 9})]
    assert [share.cores for share in share_out(FOUR, 2, near=near)] == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, math.inf),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
                "sys/fs/cgroup/job/cpu.max": "400000 100000\n",
            },
            4.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/job\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            },
            1.5,
        ),
    ],
)
def test_quota_of_both_versions_of_cgroups(
    tmp_path: Path, files: dict[str, str], quota: float
) -> None:
    assert cgroup_quota(plant(tmp_path, files)) == quota


def test_cpulists() -> None:
    assert parse_cpulist("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cpulist("\n") == frozenset()


def test_threads_of_the_environment_can_be_kept() -> None:
    environ = {"OMP_NUM_THREADS": "3"}
    assert place(Share(2), environ, keep_threads=True) == 3
    assert environ == dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "3"
    )
    assert place(Share(2), environ) == 2
    assert set(environ.values()) == {"2"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this platform binds no process")
def test_a_process_is_bound_to_its_share() -> None:
    core = usable_cores()[0]
    code = (
        "import os; from paceline.launch.placement import Share, place\n"
        f"place(Share(1, ({core},)))\n"
        "print(os.sched_getaffinity(0), os.environ['OMP_NUM_THREADS'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{{{core}}} 1\n"
