"""`python -m tests.drills`: runs the drills whole, prints their figures, exits with 1 where one fails."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from tests.drills import across_ranks, bit_equality, out_of_memory, restarts
from tests.drills.report import Report

DRILLS: dict[str, tuple[Callable[..., Report], int, str]] = {
    "bit-equality": (bit_equality.drill, 54, "SIGKILLs"),
    "across-ranks": (across_ranks.drill, 4, "runs"),
    "out-of-memory": (out_of_memory.drill, 20, "shortages"),
    "restarts": (restarts.drill_own, 50, "restarts"),
    "torchrun": (restarts.drill_torchrun, 50, "restarts"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument("--only", choices=DRILLS, help="this one drill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--count", type=int, help="kills, runs, shortages or restarts of each drill"
    )
    parser.add_argument("--folder", type=Path, help="where to keep the runs; else they are removed")
    arguments = parser.parse_args()
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs,"
        f" load {os.getloadavg()[0]:.1f} at the start"
    )
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="paceline-drills-"))
    chosen = [arguments.only] if arguments.only else list(DRILLS)
    failed = [name for name in chosen if not _run(name, folder / name, arguments)]
    if not arguments.folder and not failed:
        shutil.rmtree(folder)
    if failed:
        print(f"failed: {', '.join(failed)}; their runs are in {folder}", file=sys.stderr)
    return int(bool(failed))


def _run(name: str, folder: Path, arguments: argparse.Namespace) -> bool:
    drill, count, of = DRILLS[name]
    count, start = arguments.count or count, time.monotonic()
    print(f"\n{name}: {count} {of}, seed {arguments.seed}", flush=True)
    try:
        report = drill(folder, seed=arguments.seed, count=count)
    except Exception:  # noqa: BLE001 (the next drill still runs)
        traceback.print_exc()
        return False
    for what, value in report.figures.items():
        print(f"  {what}: {value}")
    print(f"  duration: {time.monotonic() - start:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
