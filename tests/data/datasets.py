"""Data sets that loader processes import: with global generators, broken samples, and their own process's number."""

from __future__ import annotations

import os
import random
import resource
import threading
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from paceline.data.sources import Source


class Drawing(Dataset[Any]):
    """Draws from all three global generators, as users' transforms do."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        numbers = [torch.rand(1).item(), float(np.random.rand()), random.random()]
        return {"input": torch.tensor(numbers, dtype=torch.float64), "target": index}


class Unreadable(Dataset[Any]):
    """Sample i is an image of i + 1, but for those that cannot be read."""

    def __init__(self, size: int, *bad: int) -> None:
        self.size, self.bad = size, bad

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise OSError(f"no picture {index}")
        return torch.full((1, 2, 2), float(index + 1)), index % 3


class Process(Dataset[Any]):
    """Says which process loaded a sample, slowly enough for somebody to interfere."""

    def __init__(self, size: int = 40, seconds: float = 0.0) -> None:
        self.size, self.seconds = size, seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.tensor([os.getpid(), torch.get_num_threads()]), 0


class Broken(Dataset[Any]):
    """Has a defect that is no unreadable file."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index > 0:
            raise KeyError("a typo of the user")
        return torch.zeros(1)


class Seeds(Source):
    """What the global generators of its process were seeded with, untouched by seeding for a sample."""

    draws_globally = False

    def __len__(self) -> int:
        return 8

    def load(self, index: int) -> Any:
        numpy_state: Any = np.random.get_state()
        seeds = [torch.initial_seed(), int(numpy_state[1][0]), random.getstate()[1][1]]
        return {"input": torch.tensor([seed % 2**31 for seed in seeds])}


class Confined(Dataset[Any]):
    """Lets a loader process have no shared memory to speak of, as a container may."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        return torch.zeros(100_000)


class Locked(Dataset[Any]):
    """Cannot be sent to another process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1)
