"""How much memory a rank takes: the peak on a GPU, the resident size of the process on a CPU."""

from __future__ import annotations

import os
import resource
import sys

import torch

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def memory_bytes(device: torch.device) -> int:
    """CUDA: the most that tensors took since the last reset. CPU: what the process takes now.

    Where there is no /proc (macOS), the CPU's number is the peak since the process began.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except FileNotFoundError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def reset_memory(device: torch.device) -> None:
    """Starts a new peak on CUDA; a CPU's number is no peak and has nothing to reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
