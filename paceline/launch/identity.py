"""Which rank this process is, known before torch is imported: a log needs its name first.

`parallel/world.py` reads the same words of the environment to join the other ranks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """A rank among the ranks of one attempt. `attempt` counts the restarts by the elastic agent."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    num_local_ranks: int = 1
    attempt: int = 0


def identify(environ: Mapping[str, str] = os.environ) -> Identity:
    """Rank 0 of 1 where nobody launched this process as a rank."""
    if "RANK" not in environ:
        return Identity()
    num_ranks = int(environ.get("WORLD_SIZE", "1"))
    return Identity(
        rank=int(environ["RANK"]),
        num_ranks=num_ranks,
        local_rank=int(environ.get("LOCAL_RANK", environ["RANK"])),
        num_local_ranks=int(environ.get("LOCAL_WORLD_SIZE", num_ranks)),
        attempt=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )
