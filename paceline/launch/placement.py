"""Shares a machine's cores out among the ranks on it: threads, and the cores each is bound to.

Pure functions over what /sys and /proc say (`root` may be a planted one), and `place`, which gives
this process its share. Call that before torch is imported: thread pools read the environment once.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Share:
    """What one rank gets. `cores` is empty where the rank stays unbound."""

    threads: int
    cores: tuple[int, ...] = ()


def place(
    share: Share, environ: MutableMapping[str, str] = os.environ, *, keep_threads: bool = False
) -> int:
    """Gives this process its share, and returns its number of threads.

    keep_threads: numbers that stand in the environment win.
    """
    chosen = environ.get(_THREAD_VARIABLES[0], "") if keep_threads else ""
    threads = int(chosen) if chosen.isdigit() and int(chosen) > 0 else share.threads
    for name in _THREAD_VARIABLES:
        if not (keep_threads and name in environ):
            environ[name] = str(threads)
    if share.cores:
        os.sched_setaffinity(0, share.cores)
    return threads


def share_of(
    local_rank: int,
    num_local_ranks: int,
    *,
    threads: int,
    bind: bool,
    on_gpus: bool,
    root: Path = Path("/"),
) -> Share:
    """One rank's share of this machine. threads: the configured number, 0 for an even division."""
    cores = usable_cores()
    near = gpu_cores(num_local_ranks, os.environ, root) if on_gpus else []
    return share_out(
        order_by_core(cores, core_of_cpu(cores, root)),
        num_local_ranks,
        threads=threads,
        bind=bind and hasattr(os, "sched_setaffinity"),
        quota=cgroup_quota(root),
        near=near,
    )[local_rank]


def share_out(
    cores: Sequence[Sequence[int]],
    num_ranks: int,
    *,
    threads: int = 0,
    bind: bool = True,
    quota: float = math.inf,
    near: Sequence[frozenset[int]] = (),
) -> list[Share]:
    """Shares physical cores out among ranks.

    cores: the hardware threads of each physical core, in an order in which neighbours share caches.
    quota: processors' worth of time a second that the ranks may use together (cgroup).
    near: for each rank the CPUs next to its GPU, which ranks with the same ones share out; empty
        where that is unknown.
    """
    pieces = _pieces_near(cores, near) if len(near) == num_ranks else []
    if not pieces or not all(pieces):
        pieces = slices(cores, num_ranks)
    allowed = max(1, math.floor(quota / num_ranks)) if quota < math.inf else len(cores)
    bind = bind and all(pieces) and num_ranks > 1
    return [
        Share(
            threads or max(1, min(len(piece), allowed)),
            tuple(sorted(cpu for core in piece for cpu in core)) if bind else (),
        )
        for piece in pieces
    ]


def slices(cores: Sequence[Sequence[int]], num_ranks: int) -> list[list[Sequence[int]]]:
    """Contiguous pieces, as equal as can be; all empty where there are fewer cores than ranks."""
    if len(cores) < num_ranks:
        return [[] for _ in range(num_ranks)]
    bounds = [len(cores) * rank // num_ranks for rank in range(num_ranks + 1)]
    return [list(cores[start:stop]) for start, stop in itertools.pairwise(bounds)]


def _pieces_near(
    cores: Sequence[Sequence[int]], near: Sequence[frozenset[int]]
) -> list[list[Sequence[int]]]:
    """For each rank its part of the cores next to its GPU."""
    pieces = []
    for rank, cpus in enumerate(near):
        local = [core for core in cores if cpus.issuperset(core)]
        sharers = [other for other, others in enumerate(near) if others == cpus]
        pieces.append(slices(local, len(sharers))[sharers.index(rank)])
    return pieces


def usable_cores() -> list[int]:
    """The CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def core_of_cpu(cpus: Sequence[int], root: Path = Path("/")) -> dict[int, tuple[int, int]]:
    """(package, core) of each CPU, equal for hardware threads of a core; unknown: its own core."""
    found = {}
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        package, core = _number(topology / "physical_package_id"), _number(topology / "core_id")
        known = package is not None and core is not None
        found[cpu] = (package or 0, core or 0) if known else (0, cpu)
    return found


def order_by_core(
    cpus: Sequence[int], core_of: Mapping[int, tuple[int, int]]
) -> list[tuple[int, ...]]:
    """The CPUs grouped by physical core, in order of package and core.

    Linux often numbers the second hardware threads after all first ones: slices of plain CPU
    numbers would make two ranks share every core.
    """
    grouped: dict[tuple[int, int], list[int]] = {}
    for cpu in cpus:
        grouped.setdefault(core_of[cpu], []).append(cpu)
    return [tuple(sorted(grouped[core])) for core in sorted(grouped)]


def cgroup_quota(root: Path = Path("/")) -> float:
    """How many processors' worth of time this process's cgroups allow; infinite without a limit."""
    return min((_quota_of(folder) for folder in _cgroup_folders(root)), default=math.inf)


def _cgroup_folders(root: Path) -> list[Path]:
    """The folders of this process's cgroup and of those around it, for both versions of cgroups."""
    folders = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            base = root / "sys/fs/cgroup" / controllers
            base = base if base.exists() else root / "sys/fs/cgroup/cpu"
        else:
            continue
        inner = Path(path.lstrip("/"))
        folders += [base / inner, *(base / parent for parent in inner.parents)]
    return folders


def _quota_of(folder: Path) -> float:
    words = _text(folder / "cpu.max").split()
    if len(words) == 2 and words[0] != "max":
        return int(words[0]) / int(words[1])
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else math.inf


def gpu_cores(
    num_ranks: int, environ: Mapping[str, str], root: Path = Path("/")
) -> list[frozenset[int]]:
    """The CPUs next to the GPU of each local rank, from sysfs; empty where any is unknown.

    GPUs are taken in PCI order, as CUDA does where they are alike.
    """
    gpus = sorted((root / "proc/driver/nvidia/gpus").glob("*:*:*.*"))
    visible = _visible(gpus, environ.get("CUDA_VISIBLE_DEVICES"))
    if len(visible) < num_ranks:
        return []
    near = []
    for gpu in visible[:num_ranks]:
        listed = _text(root / "sys/bus/pci/devices" / gpu.name.lower() / "local_cpulist")
        near.append(parse_cpulist(listed))
    return near if all(near) else []


def _visible(gpus: Sequence[Path], chosen: str | None) -> list[Path]:
    if chosen is None:
        return list(gpus)
    by_uuid = {_gpu_uuid(gpu): gpu for gpu in gpus}
    visible = []
    for word in (part.strip() for part in chosen.split(",")):
        if word.isdigit() and int(word) < len(gpus):
            visible.append(gpus[int(word)])
        elif word in by_uuid:
            visible.append(by_uuid[word])
        else:  # CUDA ignores this one and all after it
            break
    return visible


def _gpu_uuid(gpu: Path) -> str:
    found = re.search(r"GPU UUID:\s*(\S+)", _text(gpu / "information"))
    return found[1] if found else ""


def parse_cpulist(text: str) -> frozenset[int]:
    """`0-3,8` as the kernel writes it."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _text(path: Path) -> str:
    """Empty where the kernel or the container shows no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
