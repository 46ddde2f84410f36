"""Copies of tensors as they are now, in CPU buffers that are used again; writes no file."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Snapshot:
    """Holds one copy of the tensors it was last given.

    From CUDA the copy goes to pinned memory on the current stream without making the caller wait:
    work queued later on that stream cannot overtake it. `ready()` waits for it.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._pinned: set[str] = set()
        self._events: list[torch.cuda.Event] = []

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        buffers: dict[str, Tensor] = {}
        devices: set[torch.device] = set()
        for name, tensor in tensors.items():
            buffers[name] = self._buffer(name, tensor)
            buffers[name].copy_(tensor, non_blocking=tensor.is_cuda)
            if tensor.is_cuda:
                devices.add(tensor.device)
        self._buffers = buffers
        self._pinned = {name for name, tensor in tensors.items() if tensor.is_cuda}
        self._events = [_record(device) for device in devices]

    def ready(self) -> Mapping[str, Tensor]:
        """The copies: contiguous CPU tensors. To be called from any thread."""
        for event in self._events:
            event.synchronize()
        return self._buffers

    def _buffer(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if (
            buffer is None
            or buffer.shape != tensor.shape
            or buffer.dtype != tensor.dtype
            or (name in self._pinned) != tensor.is_cuda
        ):
            return torch.empty(
                tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda
            )
        return buffer


def _record(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return event
