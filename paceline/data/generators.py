"""The global generators of torch, numpy and random, for users' transforms that draw from them.

Paceline's own augmentations never touch them. A user's transform is given generators seeded for its sample, and the
rank's own (which dropout draws from) are put back afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from paceline.data.draws import key


def seed_generators(*parts: int) -> None:
    """Seeds all three with different numbers made of `parts`. Leaves the generators of devices alone."""
    torch.default_generator.manual_seed(
        key(*parts, 1)
    )  # manual_seed() itself would reseed every device, 200 us
    np.random.seed(key(*parts, 2) & 0xFFFFFFFF)
    random.seed(key(*parts, 3))


@contextmanager
def generators_kept() -> Iterator[None]:
    """Puts the three generators back as they were."""
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
