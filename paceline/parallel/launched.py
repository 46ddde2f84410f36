"""Which rank a launcher started this process as: the only reader of RANK, WORLD_SIZE and their like.

Knows no torch: a rank must name its log, and bind itself to its cores, before the seconds that importing torch takes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import UserError


@dataclass(frozen=True)
class Launched:
    """What a launcher (torch elastic, torchrun) tells a rank through its environment.

    attempt: counts restarts by the elastic agent. store_in_agent: the agent serves the store where ranks meet.
    """

    rank: int = 0
    local_rank: int = 0
    num_ranks: int = 1
    local_num_ranks: int = 1
    attempt: int = 0
    address: str = "127.0.0.1"
    port: int = 29500
    store_in_agent: bool = False


def launched(environ: Mapping[str, str] = os.environ) -> Launched | None:
    """The launcher's word to this process, or None where nobody launched it as a rank."""
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    try:
        num_ranks = int(environ["WORLD_SIZE"])
        return Launched(
            rank=int(environ["RANK"]),
            local_rank=int(environ.get("LOCAL_RANK", environ["RANK"])),
            num_ranks=num_ranks,
            local_num_ranks=int(environ.get("LOCAL_WORLD_SIZE", num_ranks)),
            attempt=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            address=environ.get("MASTER_ADDR", "127.0.0.1"),
            port=int(environ.get("MASTER_PORT", "29500")),
            store_in_agent=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    except ValueError as error:
        raise UserError(
            f"the launcher's environment is not usable: {error}",
            "start ranks with `paceline train --ranks N` or with torchrun",
        ) from error
