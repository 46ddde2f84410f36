"""The order of samples: a pure function of (seed, epoch), a cursor in samples, and what a rank takes of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.data.draws import GOLDEN, key, mix

_ORDER = 0x0DE7  # keeps these keys apart from those of augmentation


def permutation(seed: int, epoch: int, num_samples: int) -> np.ndarray:
    """The sample indices of an epoch in order, (num_samples,) int64; the same on every rank and version.

    Samples are sorted by a hash, whose lowest bits give way to the index: sorting such numbers is several times
    faster than sorting indices by them, and equal hashes keep a defined order.
    """
    indices = np.arange(num_samples, dtype=np.uint64)
    hashes = mix(indices * np.uint64(GOLDEN) + np.uint64(key(_ORDER, seed, epoch)))
    below = np.uint64((1 << max(num_samples - 1, 1).bit_length()) - 1)
    hashes &= ~below
    hashes |= indices
    hashes.sort()
    hashes &= below
    return hashes.astype(np.int64)


@dataclass(frozen=True, order=True, kw_only=True)
class Cursor:
    """Where a run is: `position` samples of `epoch` are done. Knows nothing of batches or ranks."""

    epoch: int = 0
    position: int = 0

    def advance(self, count: int, num_samples: int) -> Cursor:
        """After a step of `count` samples, or what was left of the epoch."""
        position = self.position + count
        if position >= num_samples:
            return Cursor(epoch=self.epoch + 1)
        return Cursor(epoch=self.epoch, position=position)


def steps_per_epoch(num_samples: int, global_batch: int) -> int:
    """Optimizer steps of an epoch; the last may be smaller."""
    return -(-num_samples // global_batch)


def step_chunks(
    position: int, num_samples: int, global_batch: int, micro_batch: int
) -> list[range]:
    """The positions of one optimizer step, cut into chunks that run through the model together.

    The cut knows nothing of ranks, so that groups of samples (BatchNorm's statistics, mixup's pairs) stay the same
    for any number of them. The tail of an epoch is a smaller step. A remainder of one sample joins the chunk before
    it, since BatchNorm fails over one value.
    """
    stop = min(position + global_batch, num_samples)
    starts = list(range(position, stop, micro_batch))
    if len(starts) > 1 and micro_batch > 1 and stop - starts[-1] == 1:
        starts.pop()
    return [range(a, b) for a, b in zip(starts, [*starts[1:], stop], strict=True)]


def rank_chunks(
    chunks: Sequence[range],
    data_rank: int,
    num_data_ranks: int,
    global_batch: int,
    micro_batch: int,
) -> list[range]:
    """This rank's chunks of a step: equally many consecutive ones a rank. In a tail the last ranks may have none."""
    each = global_batch // (num_data_ranks * micro_batch)
    return list(chunks[data_rank * each : (data_rank + 1) * each])


def evaluation_share(num_samples: int, data_rank: int, num_data_ranks: int) -> range:
    """This rank's contiguous share of the evaluation samples; shares differ by one sample at most."""
    start, stop = (num_samples * r // num_data_ranks for r in (data_rank, data_rank + 1))
    return range(start, stop)
