"""How much memory a rank reports."""

from __future__ import annotations

import pytest
import torch

from paceline.records.memory import memory_bytes, reset_memory


def test_the_resident_size_grows_with_what_is_touched() -> None:
    cpu = torch.device("cpu")
    before = memory_bytes(cpu)
    reset_memory(cpu)
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    assert memory_bytes(cpu) - before > 48 << 20
    assert memory_bytes(cpu) < 1 << 40


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_reports_the_peak_since_the_reset() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    block = torch.empty(64 << 20, dtype=torch.uint8, device=device)
    assert memory_bytes(device) >= 64 << 20
    del block
    reset_memory(device)
    assert memory_bytes(device) < 64 << 20
