"""The memory layout of images: channels last for 2-D convolutions, and the check that it stuck."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


class Layout:
    """Lays a model's weights out, and each batch of inputs; names and values stay.

    setting: `auto`, for a model with 2-D convolutions, or a choice. look: whether to see in the first pass if it
    stuck; not for compiled models, whose layouts are the compiler's choice.
    """

    def __init__(self, module: nn.Module, setting: bool | str, *, look: bool) -> None:
        convolutions = {n: m for n, m in module.named_modules() if isinstance(m, _CONVOLUTIONS)}
        self.channels_last = bool(convolutions) if setting == "auto" else bool(setting)
        self._fallen: list[str] = []
        self._num = len(convolutions)
        self._passes = 0
        self._hooks: list[RemovableHandle] = []
        if self.channels_last:
            module.to(memory_format=torch.channels_last)
        if self.channels_last and look:
            self._hooks = [
                m.register_forward_pre_hook(self._looker(name)) for name, m in convolutions.items()
            ]

    def inputs(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """A batch's inputs in this layout."""
        self._passes += 1
        if self._passes > 1 and self._hooks:
            self._stop_looking()
        if not self.channels_last:
            return tensors
        return tuple(
            t.contiguous(memory_format=torch.channels_last)
            if isinstance(t, Tensor) and t.ndim == 4
            else t
            for t in tensors
        )

    def news(self) -> str | None:
        """After the first pass: where activations had fallen back, said once."""
        if not self._fallen:
            return None
        fallen, self._fallen = self._fallen, []
        self._stop_looking()
        shown = ", ".join(fallen[:3]) + (", …" if len(fallen) > 3 else "")
        return (
            f"channels_last did not stick: {len(fallen)} of {self._num} convolutions get inputs of another layout,"
            f" which are converted each time ({shown}); model.channels_last = false may be faster"
        )

    def _stop_looking(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _looker(self, name: str) -> Any:
        def look(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            image = inputs[0] if inputs else None
            if not isinstance(image, Tensor) or image.ndim != 4 or name in self._fallen:
                return
            if not image.is_contiguous(memory_format=torch.channels_last):
                self._fallen.append(name)

        return look
