"""Describes where a run was started: versions, machine, command line, commit; holds no secrets.

Environment variables are copied from a short list of names only, and what looks like a password
in them or on the command line is blanked. The commit is read from git's files, so that no hook,
filter or setting of a repository runs.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import paceline
from paceline.records.folder import RunFolder, write_atomically

_PACKAGES = ("torch", "torchvision", "numpy", "safetensors")
_VARIABLES = re.compile(
    r"(CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_LAUNCH_BLOCKING|CUBLAS_WORKSPACE_CONFIG"
    r"|(OMP|MKL)_NUM_THREADS|(NCCL|GLOO|TORCH|PYTORCH)_\w+)"
)
_SECRET_NAME = r"[\w.-]*(?:passw(?:or)?d|secret|token|api[_-]?key|credentials?)(?![a-z])[\w-]*"
_SECRETS = re.compile(rf"(?is)(://)[^/\s@]+(?=@)|({_SECRET_NAME}\s*=\s*).+")
_BLANK = "[not recorded]"


def write_environment(folder: RunFolder, command: Sequence[str] | None = None) -> None:
    """Writes environment.json; a resumed run keeps the earlier descriptions under "earlier"."""
    description = {**describe_environment(command), "earlier": _earlier(folder.environment)}
    write_atomically(folder.environment, json.dumps(description, indent=2) + "\n")


def describe_environment(command: Sequence[str] | None = None) -> dict[str, Any]:
    """Everything that environment.json holds. command: this process's own where none is given."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "hostname": socket.gethostname(),
        "command": without_secrets(sys.argv if command is None else command),
        "directory": os.getcwd(),
        "git": git_commit(Path.cwd()),
        "versions": _versions(),
        "machine": _machine(),
        "variables": allowed_variables(os.environ),
    }


def without_secrets(command: Sequence[str]) -> list[str]:
    """The command line with the values of passwords, tokens and keys blanked."""
    shown: list[str] = []
    for word in command:
        flag = shown[-1] if shown else ""
        if re.fullmatch(rf"(?i)-{_SECRET_NAME}", flag) and not word.startswith("-"):
            shown.append(_BLANK)
        else:
            shown.append(_SECRETS.sub(lambda m: f"{m[1] or m[2]}{_BLANK}", word))
    return shown


def allowed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how torch computes; no others are ever recorded."""
    names = sorted(name for name in environment if _VARIABLES.fullmatch(name))
    secret = re.compile(_SECRET_NAME, re.IGNORECASE)
    return {
        name: _BLANK if secret.search(name) else without_secrets([environment[name]])[0]
        for name in names
    }


def git_commit(directory: Path) -> dict[str, str] | None:
    """The commit (and branch) checked out around a directory; None where there is none to read.

    Whether files were changed since is not said: to find out, git would run the repository's own
    filters.
    """
    for parent in (directory, *directory.parents):
        marker = parent / ".git"
        if marker.exists():
            return _read_head(_git_folder(marker))
    return None


def _git_folder(marker: Path) -> Path:
    """Of a plain repository `.git` itself; of a worktree or submodule, where that file points."""
    if marker.is_dir():
        return marker
    target = _first_line(marker).removeprefix("gitdir: ")
    return marker.parent / target


def _read_head(folder: Path) -> dict[str, str] | None:
    head = _first_line(folder / "HEAD")
    if not head.startswith("ref: refs/"):
        return {"commit": head} if _is_commit(head) else None
    reference = head.removeprefix("ref: ")
    if ".." in reference:
        return None
    common = folder / (_first_line(folder / "commondir") or ".")
    commit = _first_line(common / reference) or _packed(common, reference)
    if not _is_commit(commit):
        return None
    return {"commit": commit, "branch": reference.removeprefix("refs/heads/")}


def _packed(folder: Path, reference: str) -> str:
    for line in _read_text(folder / "packed-refs").splitlines():
        commit, _, name = line.partition(" ")
        if name == reference:
            return commit
    return ""


def _is_commit(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", text) is not None


def _first_line(path: Path) -> str:
    return _read_text(path).partition("\n")[0].strip()


def _read_text(path: Path) -> str:
    """Empty where the file is missing or not ours to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _versions() -> dict[str, str | None]:
    import torch

    versions: dict[str, str | None] = {
        "paceline": paceline.__version__,
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # built from source without its metadata
            versions[name] = None
    versions["torch"] = torch.__version__  # with its build, as in 2.6.0+cu124
    versions["cuda"] = torch.version.cuda
    versions["driver"] = _driver()
    return versions


def _driver() -> str | None:
    found = re.search(r"Module\s+([\d.]+)", _read_text(Path("/proc/driver/nvidia/version")))
    return found[1] if found else None


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": _usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpus(),
    }


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _read_text(Path("/proc/cpuinfo")), re.MULTILINE)
    if found:
        return found[1]
    if sys.platform == "darwin":
        return _output_of(["sysctl", "-n", "machdep.cpu.brand_string"]).strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[dict[str, Any]]:
    """Asked of nvidia-smi: asking torch would start a CUDA context in this process on each GPU."""
    listing = _output_of(
        ["nvidia-smi", "--query-gpu=name,memory.total,uuid", "--format=csv,noheader,nounits"]
    )
    rows = [row for row in csv.reader(listing.splitlines(), skipinitialspace=True) if len(row) == 3]
    return [{"name": name, "memory_mib": memory, "uuid": uuid} for name, memory, uuid in rows]


def _output_of(command: list[str]) -> str:
    """What a program prints; empty where it is missing or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _earlier(path: Path) -> list[dict[str, Any]]:
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        return [*before.pop("earlier", []), before]
    except FileNotFoundError:
        return []
    except (ValueError, AttributeError):  # cut short by a kill
        return []
