"""`parallel.micro_batch = "auto"`: finds the largest micro-batch that fits, in ranks started for that alone."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.config.schema import LaunchConfig, RunConfig
from paceline.config.write import write_config
from paceline.errors import UserError
from paceline.launch.local import LaunchResult, launch
from paceline.records.folder import RunFolder, write_atomically
from paceline.records.reader import read


@dataclass(frozen=True)
class Tried:
    """short: the ranks that ran out of memory. memory_bytes: by rank, what it took."""

    micro_batch: int
    short: list[int]
    memory_bytes: list[int]


class Stopped(Exception):
    """Someone asked to stop while sizes were tried."""


def find_micro_batch(
    folder: RunFolder,
    config: RunConfig,
    *,
    share: int,
    num_ranks: int,
    command: Sequence[str],
    env: Mapping[str, str],
    say: Callable[[str], None],
) -> RunConfig:
    """`config` with the largest micro-batch that fits on every rank; what was tried is in the run's probe.json.

    share: samples a device of the global batch. command: starts a rank; lacks its run folder.
    """
    start = time.monotonic()
    probing = RunFolder(folder.path / "probe")
    shutil.rmtree(probing.path, ignore_errors=True)

    def try_sizes(sizes: Sequence[int]) -> list[Tried]:
        return _try(probing, config, sizes, num_ranks=num_ranks, command=command, env=env, say=say)

    say(f"parallel.micro_batch = auto: trying the sizes that fit into {share} samples a device")
    tried = _search(sizes_of(share, config.memory.smallest), try_sizes)
    fitting = [each.micro_batch for each in tried if not each.short]
    if not fitting:
        raise UserError(
            f"not even a micro-batch of {tried[0].micro_batch} fits with memory.margin ="
            f" {config.memory.margin:g}",
            "use smaller inputs or a smaller model, bf16, or another device",
        )
    shutil.rmtree(probing.path)
    found = max(fitting)
    report = {
        "micro_batch": found,
        "margin": config.memory.margin,
        "seconds": round(time.monotonic() - start, 3),
        "tried": [asdict(each) for each in tried],
    }
    write_atomically(folder.probe, json.dumps(report, indent=2) + "\n")
    parallel = dataclasses.replace(config.parallel, micro_batch=found)
    settled = dataclasses.replace(config, parallel=parallel)
    write_atomically(folder.config, write_config(settled))
    return settled


def sizes_of(share: int, smallest: int) -> list[int]:
    """What divides a device's share, from the smallest allowed on."""
    return [n for n in range(min(smallest, share), share + 1) if share % n == 0]


def _search(sizes: list[int], try_sizes: Callable[[Sequence[int]], list[Tried]]) -> list[Tried]:
    """Doubles in one set of processes until a size does not fit; then halves the gap, each time in fresh ones."""
    doubling = [sizes[0]]
    for size in sizes:
        if size >= 2 * doubling[-1]:
            doubling.append(size)
    if doubling[-1] != sizes[-1]:
        doubling.append(sizes[-1])
    tried = try_sizes(doubling)
    while any(each.short for each in tried):
        low = max((each.micro_batch for each in tried if not each.short), default=0)
        high = min(each.micro_batch for each in tried if each.short)
        between = [n for n in sizes if low < n < high]
        if not between:
            break
        tried += try_sizes([between[len(between) // 2]])
    return tried


def _try(
    folder: RunFolder,
    config: RunConfig,
    sizes: Sequence[int],
    *,
    num_ranks: int,
    command: Sequence[str],
    env: Mapping[str, str],
    say: Callable[[str], None],
) -> list[Tried]:
    shutil.rmtree(folder.path, ignore_errors=True)
    folder.create()
    write_atomically(folder.config, write_config(config))
    ended = launch(
        [*command, str(folder.path), "--work", "probe", "--probe", ",".join(map(str, sizes))],
        folder,
        num_ranks=num_ranks,
        config=_once(config.launch),
        env=env,
        say=say,
    )
    _check(ended)
    found: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
    for rank in range(num_ranks):
        for record in read(folder.records(rank)):
            found[record["micro_batch"]].append(record)
    return [
        Tried(size, by_rank[0]["short"], [each["memory_bytes"] for each in by_rank])
        for size, by_rank in found.items()
        if by_rank
    ]


def _once(config: LaunchConfig) -> LaunchConfig:
    return dataclasses.replace(config, max_restarts=0)


def _check(ended: LaunchResult) -> None:
    if ended.error is not None:
        raise ended.error
    if ended.status != "finished":
        raise Stopped(ended.reason)
