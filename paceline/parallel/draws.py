"""Random draws inside the model (dropout): a pure function of (seed, step, micro-batch), on any number of ranks.

Micro-batches are numbered over the whole global batch, so data ranks draw different masks, and the masks stay the
same when ranks change and the micro-batch does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.data.draws import key


def seed_micro_batch(seed: int, step: int, index: int, devices: Sequence[torch.device]) -> None:
    """Sets the generators that the model draws from, for micro-batch `index` of the global batch of `step`."""
    torch.default_generator.manual_seed(key(seed, step, index) >> 1)
    for replica, device in enumerate(devices):
        if device.type == "cuda":
            generator = torch.cuda.default_generators[device.index]
            generator.manual_seed(key(seed, step, index, replica) >> 1)
