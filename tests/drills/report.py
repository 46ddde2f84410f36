"""What a drill found, and how it is printed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.drills.runs import DrillRun


@dataclass
class Report:
    """Figures by what they tell, in order. `add_cleanliness` counts over all runs of a drill."""

    name: str
    figures: dict[str, Any] = field(default_factory=dict)

    def add_kills(self, struck: Sequence[dict[str, Any]]) -> None:
        kinds = Counter(each["kind"] for each in struck)
        self.figures["kills and stops that hit a living process"] = len(struck)
        self.figures["of these"] = ", ".join(f"{kind} {kinds[kind]}" for kind in sorted(kinds))

    def add_cleanliness(self, runs: Iterable[DrillRun]) -> None:
        runs = list(runs)
        launches = [launch for run in runs for launch in run.launches]
        self.figures["launches of the command"] = len(launches)
        self.figures["launches killed before there was a run"] = sum(r.num_unborn for r in runs)
        self.figures["partial checkpoints left by kills, all removed at the next start"] = sum(
            run.num_leftovers for run in runs
        )
        longest = max(launch.gone_after_s for launch in launches)
        self.figures["longest that a process outlived its launcher"] = f"{longest:.2f} s"
        self.figures["new files in /dev/shm"] = 0  # else a launch has failed


def spread(seconds: Sequence[float]) -> str:
    """Median, largest and number of some times."""
    if not seconds:
        return "none"
    return f"median {statistics.median(seconds):.1f} s, largest {max(seconds):.1f} s, of {len(seconds)}"
