"""Buffers that a model changes itself (codebooks, spectral norm's vectors), so that a step can be done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class OwnBuffers:
    """The buffers of a model besides BatchNorm's, which have a rule of their own.

    Which of them a pass changes is learned from the first one, before which all are copied; later only those are.
    """

    def __init__(self, module: nn.Module, is_elsewhere: Callable[[Tensor], bool]) -> None:
        self._module = module
        self._is_elsewhere = is_elsewhere
        self._changing: list[str] | None = None
        self._kept: dict[str, Tensor] = {}

    @property
    def names(self) -> list[str]:
        return [n for n, buffer in self._module.named_buffers() if not self._is_elsewhere(buffer)]

    def changed(self) -> list[bool]:
        """For each name, whether it differs from what `keep` kept."""
        now = dict(self._module.named_buffers())
        return [n in self._kept and not torch.equal(now[n], self._kept[n]) for n in self.names]

    def learn(self, changing: Sequence[str]) -> None:
        """From now on only these are kept."""
        self._changing = list(changing)

    @property
    def learned(self) -> bool:
        return self._changing is not None

    def keep(self) -> None:
        """Before the first pass of a step."""
        names = self.names if self._changing is None else self._changing
        self._kept = {name: self._module.get_buffer(name).clone() for name in names}

    def restore(self) -> None:
        """Everything as it was kept."""
        with torch.no_grad():
            for name, value in self._kept.items():
                self._module.get_buffer(name).copy_(value)
