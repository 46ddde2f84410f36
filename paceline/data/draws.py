"""Random numbers that are pure functions of (seed, epoch, sample, stream): no state, no global generator.

The arithmetic is splitmix64's (Steele, Lea, Flood 2014) on unsigned 64-bit integers, written out here, so that the
numbers depend on no library's version.
"""

from __future__ import annotations

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mix(values: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer, a bijection of the 64-bit integers. values: uint64, at least 1-d."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(_FACTORS[0])
    values ^= values >> np.uint64(27)
    values *= np.uint64(_FACTORS[1])
    values ^= values >> np.uint64(31)
    return values


def key(*parts: int) -> int:
    """One 64-bit key of several integers; another order of the parts is another key."""
    state = 0
    for part in parts:
        state = ((state + GOLDEN) & _MASK) ^ (part & _MASK)
        state = ((state ^ (state >> 30)) * _FACTORS[0]) & _MASK
        state = ((state ^ (state >> 27)) * _FACTORS[1]) & _MASK
        state ^= state >> 31
    return state


def frozen_generator(bits: int) -> np.random.RandomState:
    """numpy's legacy generator, whose streams are promised never to change; for what is not uniform."""
    return np.random.RandomState(np.array([bits >> 32, bits & 0xFFFFFFFF], np.uint32))


class Draws:
    """Random numbers for n samples of one epoch, a row a sample; equal however the samples are batched."""

    def __init__(self, seed: int, epoch: int, indices: np.ndarray) -> None:
        spread = indices.astype(np.uint64) * np.uint64(GOLDEN)
        self._keys = mix(spread + np.uint64(key(seed, epoch)))

    def __len__(self) -> int:
        return len(self._keys)

    def bits(self, stream: int, count: int) -> np.ndarray:
        """(n, count) uint64. A stream is a purpose: two purposes never share numbers."""
        starts = mix(self._keys ^ np.uint64(key(stream)))
        counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        return mix(starts[:, None] + counters)

    def uniform(self, stream: int, count: int) -> np.ndarray:
        """(n, count) float64 in [0, 1), multiples of 2^-53."""
        return (self.bits(stream, count) >> np.uint64(11)) * 2.0**-53

    def integers(self, stream: int, bound: int, count: int) -> np.ndarray:
        """(n, count) int64 in [0, bound); bound is below 2^32."""
        high = self.bits(stream, count) >> np.uint64(32)
        return ((high * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)
