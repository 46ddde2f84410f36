"""How much memory this process may still take, and keeping it from taking more than a share of that.

On a GPU the device says it. On a CPU it is the least of what the process's own limits, its control group and the
machine leave, and a limit on its data stands for the GPU's edge: an allocation beyond it fails, as on a GPU, and
nobody's out-of-memory killer is called.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import torch

_KIB = 1024


def free_bytes(device: torch.device, num_local_ranks: int) -> int:
    """What this process may still take: its share where ranks share a machine's memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return max(0, min(*_own_limits(), *(free // num_local_ranks for free in _shared())))


def leave_free(device: torch.device, num_local_ranks: int, margin: float) -> None:
    """From here on, allocations fail that would leave less than this share of the free memory."""
    allowed = int(free_bytes(device, num_local_ranks) * (1.0 - margin))
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        most = torch.cuda.memory_allocated(device) + allowed
        torch.cuda.set_per_process_memory_fraction(min(1.0, most / total), device)
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + allowed, hard))


def _own_limits() -> list[int]:
    """What RLIMIT_AS and RLIMIT_DATA leave."""
    left = []
    for limit, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(limit)
        left.append(1 << 62 if soft == resource.RLIM_INFINITY else soft - _status(used))
    return left


def _shared() -> list[int]:
    """What the control groups above this process and the machine leave to all of their processes."""
    return [
        _meminfo("MemAvailable"),
        *group_free(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")),
    ]


def group_free(membership: Path, root: Path) -> list[int]:
    """What each control group that this process is in leaves free, versions 1 and 2; none where there is no limit."""
    found: list[int] = []
    lines = membership.read_text().splitlines() if membership.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, names = (
                root / path.strip("/"),
                ("memory.max", "memory.current", "inactive_file"),
            )
        elif "memory" in controllers.split(","):
            folder = root / "memory" / path.strip("/")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        while folder == root or root in folder.parents:
            found += _group(folder, *names)
            folder = folder.parent
    return found


def _group(folder: Path, limit: str, usage: str, cache: str) -> list[int]:
    """What one group leaves free; the page cache that it can drop counts as free."""
    with contextlib.suppress(OSError, ValueError):  # no such group here, or "max"
        statistics = dict(
            line.split() for line in (folder / "memory.stat").read_text().splitlines()
        )
        used = int((folder / usage).read_text()) - int(statistics.get(cache, 0))
        return [int((folder / limit).read_text()) - used]
    return []


def _status(name: str) -> int:
    return _kib_line(Path("/proc/self/status"), name)


def _meminfo(name: str) -> int:
    return _kib_line(Path("/proc/meminfo"), name)


def _kib_line(path: Path, name: str) -> int:
    """Bytes, of a line such as `VmData:  1024 kB`."""
    for line in path.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * _KIB
    raise AssertionError(f"{path} has no {name}")
