"""The strategies by name, one line each, with a text that needs no torch to be read."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from paceline.errors import UserError, nearest

if TYPE_CHECKING:
    from paceline.parallel.contract import Strategy

STRATEGIES = {
    "single": ("paceline.parallel.single:Single", "one process, one device"),
    "ddp": ("paceline.parallel.ddp:DDP", "a replica a rank, gradients summed while backward runs"),
    "dp": (
        "paceline.parallel.dp:DP",
        "one process for all devices (nn.DataParallel), for comparison",
    ),
}


def choose_strategy(name: str, num_devices: int) -> str:
    """The name itself, checked; `auto`: ddp where there are several devices."""
    if name == "auto":
        return "ddp" if num_devices > 1 else "single"
    if name not in STRATEGIES:
        raise UserError(f"unknown strategy {name!r}", nearest(name, ["auto", *STRATEGIES]))
    return name


def get_strategy(name: str) -> Strategy:
    module, _, attribute = STRATEGIES[name][0].partition(":")
    strategy: Strategy = getattr(importlib.import_module(module), attribute)()
    return strategy
