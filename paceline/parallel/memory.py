"""Running out of memory: what counts as that and nothing else, and how memory is got back."""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable, Sequence

import torch

# Errors that torch raises as a plain RuntimeError; of libraries, only what they say when an allocation failed.
_SAID = (
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
)


class ShortOfMemoryError(Exception):
    """A step's passes did not fit; raised on every rank alike, with nothing of the step left behind.

    ranks: which ran out of memory. words: what the allocator said, on those ranks.
    """

    def __init__(self, ranks: Sequence[int], words: str) -> None:
        super().__init__(ranks, words)
        self.ranks = list(ranks)
        self.words = words


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation has failed in this process: on a GPU, in torch's CPU allocator, numpy or Python."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    # NCCL quotes CUDA's words in errors of its own, after which its group is of no use.
    return text.startswith("cuda error: out of memory") or any(said in text for said in _SAID)


def words_of(error: BaseException) -> str:
    """What an allocator said, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def free_memory() -> None:
    """Gives back what nothing refers to any more. The caller has left the frames that failed.

    The training loop keeps the collector from objects of the set-up (gc.freeze); here they are looked through too.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    _trim()()


@functools.cache
def _trim() -> Callable[[], object]:
    """glibc's malloc_trim, which returns freed pages of the heap to the system; elsewhere nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: None) if trim is None else functools.partial(trim, 0)
