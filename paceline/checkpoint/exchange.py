"""Words between ranks: JSON over the store's own process group; no pickle, not even in transit."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist


def exchange(value: Any, group: dist.ProcessGroup | None, num_ranks: int) -> list[Any]:
    """The JSON value of every rank, by rank. Raises RuntimeError if a rank is gone or too late."""
    if group is None:
        return [value]
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(num_ranks)]
    dist.all_gather(sizes, torch.tensor([len(data)], device="cpu"), group=group)
    padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8, device="cpu")
    padded[: len(data)] = data
    answers = [torch.empty_like(padded) for _ in range(num_ranks)]
    dist.all_gather(answers, padded, group=group)
    return [
        json.loads(answer[: int(size)].numpy().tobytes())
        for answer, size in zip(answers, sizes, strict=True)
    ]
