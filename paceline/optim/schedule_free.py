"""Schedule-free optimizers (Defazio et al. 2024, "The Road Less Scheduled") train other weights than they evaluate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def averaged_by(optimizer: Any) -> Iterator[None]:
    """Inside, the parameters are the average that a schedule-free optimizer keeps; only evaluate there.

    Its own way back computes them anew, which rounds: a copy makes the run after an evaluation bit-equal to one
    without.
    """
    parameters = [p.detach() for group in optimizer.param_groups for p in group["params"]]
    kept = [parameter.clone() for parameter in parameters]
    optimizer.eval()
    try:
        yield
    finally:
        torch._foreach_copy_(parameters, kept)
        for group in optimizer.param_groups:
            group["train_mode"] = True
