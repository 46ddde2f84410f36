"""Brings batches to the device, on CUDA a step ahead of the computation, and prepares them there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from paceline.data.batch import Batch
from paceline.data.loader import StepBatches

Prepare = Callable[[Batch], Batch]
Item = TypeVar("Item", StepBatches, "Batch | None")


def to_device(items: Iterator[Item], device: torch.device, prepare: Prepare) -> Iterator[Item]:
    """The same items, with their batches on `device` and prepared. Closes `items` when it is closed."""
    if device.type == "cuda":
        return _ahead(items, device, prepare)
    return _in_place(items, prepare)


def _in_place(items: Iterator[Item], prepare: Prepare) -> Iterator[Item]:
    """On the CPU, where batches are made: no thread, which would only take a core from the computation."""
    try:
        for item in items:
            yield _map(item, prepare)
    finally:
        _close(items)


def _ahead(items: Iterator[Item], device: torch.device, prepare: Prepare) -> Iterator[Item]:
    """Copies item k + 1 on a stream of its own before item k is handed out."""
    side = torch.cuda.Stream(device)
    waiting: list[tuple[Item, torch.cuda.Event]] = []
    try:
        for item in items:
            waiting.append(_start_copy(item, device, side))
            if len(waiting) > 1:
                yield _receive(*waiting.pop(0), device, prepare)
        for last in waiting:
            yield _receive(*last, device, prepare)
    finally:
        _close(items)


def _start_copy(
    item: Item, device: torch.device, side: torch.cuda.Stream
) -> tuple[Item, torch.cuda.Event]:
    with torch.cuda.stream(side):
        moved = _map(item, lambda batch: batch.to(device))
        return moved, side.record_event()


def _receive(item: Item, copied: torch.cuda.Event, device: torch.device, prepare: Prepare) -> Item:
    """Lets the present stream wait for the copy, and tells the allocator that it uses the tensors too."""
    stream = torch.cuda.current_stream(device)
    stream.wait_event(copied)

    def used_here(batch: Batch) -> Batch:
        for tensor in (*pytree.tree_leaves(batch.data), batch.weights):
            if isinstance(tensor, Tensor):
                tensor.record_stream(stream)
        return prepare(batch)

    return _map(item, used_here)


def _map(item: Item, function: Prepare) -> Item:
    if isinstance(item, StepBatches):
        return item.map(function)
    return item if item is None else function(item)


def _close(items: Iterator[Item]) -> None:
    close = getattr(items, "close", None)
    if close is not None:
        close()
