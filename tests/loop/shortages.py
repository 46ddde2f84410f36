"""Real allocation failures where a test wants them: a model that asks for more than its process may have."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from paceline.loop.setup import Objects
from paceline.loop.stopping import StopRequest
from paceline.loop.train import run
from paceline.records.folder import RunFolder
from tests.loop.runs import NUM_CLASSES, NUM_SAMPLES, Points, config_of

BUDGET, TOO_MUCH = 256 << 20, 384 << 20  # bytes beyond what the process has
ROWS = 6  # from as many on, a pass counts and may be short
PLACES = (
    "forward",
    "early backward",
    "late backward",
    "optimizer",
    "after optimizer",
    "evaluation",
)


@dataclass(frozen=True)
class Planted:
    """At the `call`-th large pass (or update, or evaluation pass) of these ranks, memory runs out at `place`."""

    place: str
    call: int
    ranks: tuple[int, ...] = (0,)


def ask_for_too_much() -> None:
    """Under `limited`, a failure of the allocator's own."""
    torch.empty(TOO_MUCH, dtype=torch.uint8)
    raise AssertionError("the process got memory beyond its budget")


def limit(budget: int = BUDGET) -> None:
    """From here on, this process may take `budget` more bytes of data."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + budget, hard))


def data_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return (
        int(next(line for line in text.splitlines() if line.startswith("VmData")).split()[1]) * 1024
    )


class Counter:
    """Counts the occasions at each place, and asks for too much where that is planned."""

    def __init__(self, planted: Iterable[Planted], rank: int) -> None:
        self.plan = {(p.place, p.call) for p in planted if rank in p.ranks}
        self.counts: dict[str, int] = {}
        self.struck: list[str] = []

    def at(self, place: str) -> None:
        self.counts[place] = self.counts.get(place, 0) + 1
        if (place, self.counts[place]) in self.plan:
            self.struck.append(place)
            if place == "other":
                raise ZeroDivisionError("no matter of memory")
            ask_for_too_much()

    @contextmanager
    def in_optimizer(self) -> Any:
        before = register_optimizer_step_pre_hook(lambda *_: self.at("optimizer"))
        after = register_optimizer_step_post_hook(lambda *_: self.at("after optimizer"))
        try:
            yield
        finally:
            before.remove()
            after.remove()


class AskInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counter: Counter, place: str) -> Tensor:
        ctx.counter, ctx.place = counter, place
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.counter.at(ctx.place)
        return gradients[0], None, None


class Hungry(nn.Module):
    """Several buckets of parameters, a buffer that adds up what it saw, and places where memory can run out."""

    seen: Tensor

    def __init__(self, counter: Counter, norm: str = "none", dropout: float = 0.0) -> None:
        super().__init__()
        self.counter = counter
        self.first = nn.Linear(2 * 8 * 8, 128)
        self.norm = nn.BatchNorm1d(128) if norm == "batch" else nn.Identity()
        self.second, self.third = nn.Linear(128, 128), nn.Linear(128, 128)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(128, NUM_CLASSES)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        counts = len(x) >= ROWS
        x = torch.tanh(self.norm(self.first(x.flatten(1))))
        if self.training:
            self.seen += x.detach().sum()
        if self.training and counts:
            x = AskInBackward.apply(x, self.counter, "late backward")
            self.counter.at("other")
        x = torch.tanh(self.third(torch.tanh(self.second(x))))
        if counts:
            self.counter.at("forward" if self.training else "evaluation")
        x = self.head(self.dropout(x))
        if self.training and counts:
            x = AskInBackward.apply(x, self.counter, "early backward")
        return x


def train_hungry(
    folder: Path,
    planted: list[Planted],
    sets: dict[str, Any],
    model: dict[str, Any] | None = None,
    num_samples: int = NUM_SAMPLES,
) -> list[str]:
    """One rank of a run under a budget; the places where memory ran out."""
    import os

    run_folder = RunFolder(folder)
    run_folder.create()
    counter = Counter(planted, int(os.environ.get("RANK", "0")))

    def build() -> Hungry:
        limit()
        return Hungry(counter, **(model or {}))

    objects = Objects(model=build, data=Points(num=num_samples), eval_data=Points(num=13))
    defaults = {"parallel__bucket_mb": 0.1, "records__samples": True, "optim__base_lr": 0.5}
    try:
        with counter.in_optimizer():
            run(run_folder, config_of(**(defaults | sets)), stop=StopRequest(), objects=objects)
    finally:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return counter.struck


def records(folder: Path, rank: int, kind: str) -> list[dict[str, Any]]:
    lines = (folder / f"records/rank-{rank}.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def ledger(folder: Path, num_ranks: int) -> list[list[int]]:
    """The samples of each step, by rank."""
    return [r["indices"] for rank in range(num_ranks) for r in records(folder, rank, "samples")]
