"""What the scripts in benchmarks/ share: their flags, the conditions, paired ratios with bounds, tables, JSON."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import NormalDist
from typing import Any

from paceline.records.environment import describe_environment


def parser(description: str) -> argparse.ArgumentParser:
    """With the flags that every script here takes."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument(
        "--quick", action="store_true", help="under a minute: shows that it works, proves nothing"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write every figure there as well")
    return made


def conditions(*packages: str) -> dict[str, Any]:
    """Where and how this was measured. packages: what is compared, for their versions."""
    found = describe_environment([Path(sys.argv[0]).name, *sys.argv[1:]])
    kept = {name: found[name] for name in ("time", "command", "git", "machine", "variables")}
    versions = {name: version for name, version in found["versions"].items() if version}
    versions |= {name: metadata.version(name) for name in packages}
    return {**kept, "versions": versions, "load": os.getloadavg()[0]}


def show_conditions(found: Mapping[str, Any]) -> None:
    machine, versions = found["machine"], found["versions"]
    gpus = ", ".join(gpu["name"] for gpu in machine["gpus"]) or "no GPU"
    cores = f"{machine['usable_cores']} of {machine['cores']} cores"
    print(f"machine   {machine['cpu']}, {cores}, {gpus}; {machine['system']}")
    print(f"versions  {', '.join(f'{name} {version}' for name, version in versions.items())}")
    print(f"load      {found['load']:.2f} runnable processes over the minute before")
    print(f"command   {' '.join(found['command'])}   ({found['time']})")


@dataclass(frozen=True)
class Ratio:
    """A ratio of times from paired rounds, and the bounds of its 95% interval."""

    value: float
    low: float
    high: float
    num_rounds: int

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """How much longer ours takes than theirs, from rounds in which both were measured side by side.

    What slows a whole round cancels out; what hits one of the two, such as another program, must not decide. So:
    the Hodges-Lehmann estimate over the logarithms of the rounds' ratios (the median of all means of two), with the
    bounds of Wilcoxon's signed-rank test. Hollander, Wolfe, Chicken, Nonparametric Statistical Methods, 3.2 and 3.3.
    """
    assert len(ours) == len(theirs) >= 6, "paired rounds, 6 at least: fewer have no bounds of 95%"
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(logs, 2))
    num = len(logs)
    spread = math.sqrt(num * (num + 1) * (2 * num + 1) / 24)
    outside = max(1, math.floor(len(means) / 2 - NormalDist().inv_cdf(0.975) * spread))
    value, low, high = statistics.median(means), means[outside - 1], means[-outside]
    return Ratio(math.exp(value), math.exp(low), math.exp(high), num)


def balanced_orders(num: int) -> list[list[int]]:
    """Orders in which each of `num` stands equally often at each place, and after each other one (Williams 1949)."""
    zigzag = [(place + 1) // 2 if place % 2 else (num - place // 2) % num for place in range(num)]
    orders = [[(one + shift) % num for one in zigzag] for shift in range(num)]
    return orders if num % 2 == 0 else orders + [order[::-1] for order in orders]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column to the left, all others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        first, *rest = (
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *rest]).rstrip())


def write_json(path: Path, figures: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
