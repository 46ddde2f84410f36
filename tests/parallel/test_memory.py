"""What counts as out of memory: real failures of allocators, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from paceline.parallel.memory import is_out_of_memory

TOO_MANY = 1 << 50


def test_real_failures_count() -> None:
    for fail in (
        lambda: torch.empty(TOO_MANY),
        lambda: np.empty(TOO_MANY),
        lambda: bytearray(TOO_MANY),
    ):
        assert is_out_of_memory(raised(fail))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.cuda.OutOfMemoryError("Caught OutOfMemoryError in replica 0 on device 0."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("CUDA error: out of memory"),
    ],
)
def test_what_gpus_say_counts(error: Exception) -> None:
    assert is_out_of_memory(error)


def test_other_errors_do_not() -> None:
    assert not is_out_of_memory(raised(lambda: torch.ones(2) @ torch.ones(3)))
    assert not is_out_of_memory(raised(lambda: torch.ones(2).view(3)))
    for other in (
        RuntimeError("NCCL error: unhandled cuda error: out of memory in ncclCommInitRank"),
        RuntimeError("No space left on device: out of shared memory"),
        RuntimeError("CUDA error: device-side assert triggered"),
        OSError(12, "Cannot allocate memory"),
        ValueError("DefaultCPUAllocator: can't allocate memory"),
        KeyboardInterrupt(),
    ):
        assert not is_out_of_memory(other)


def raised(fail: Callable[[], object]) -> Exception:
    try:
        fail()
    except Exception as error:  # noqa: BLE001 (whatever it is)
        return error
    raise AssertionError("this should fail")
