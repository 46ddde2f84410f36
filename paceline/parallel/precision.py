"""Number formats: autocast for bf16 and fp16, the dynamic loss scale of fp16, tf32 and fp64."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from paceline.config.schema import PrecisionConfig

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_precision(config: PrecisionConfig, device: torch.device) -> PrecisionConfig:
    """`config` with `auto` settled: the fastest format that trains as well as fp32 and that the device really has."""
    if config.dtype != "auto":
        return config
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return dataclasses.replace(config, dtype="bf16" if has_bf16 else "fp16")
    return dataclasses.replace(config, dtype="bf16" if cpu_has_bf16() else "fp32")


def parameter_dtype(config: PrecisionConfig) -> torch.dtype:
    """Weights stay in fp32 under autocast; only fp64 changes them."""
    return torch.float64 if config.dtype == "fp64" else torch.float32


def autocast(config: PrecisionConfig, device: torch.device) -> AbstractContextManager[object]:
    if config.dtype not in AUTOCAST:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=AUTOCAST[config.dtype])


def set_matmul(config: PrecisionConfig) -> None:
    """fp32 means fp32: tf32 in matrix products and convolutions only where it was asked for."""
    allowed = config.dtype == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def remarks(config: PrecisionConfig, device: torch.device) -> list[str]:
    """What a user should know about this format on this device."""
    if device.type != "cpu":
        if config.dtype == "bf16" and not torch.cuda.is_bf16_supported():
            return ["precision bf16 is emulated on this GPU and slow: use fp16"]
        return []
    if config.dtype == "tf32":
        return ["precision tf32 has no effect on the CPU: this run computes in fp32"]
    if config.dtype == "fp16":
        return ["precision fp16 is slow on the CPU: use fp32, or bf16 where the CPU has it"]
    if config.dtype == "bf16" and not cpu_has_bf16():
        return ["this CPU has no bf16 instructions and emulates them, many times slower: use fp32"]
    return []


def cpu_has_bf16() -> bool:
    """Whether convolutions and products in bf16 are faster than in fp32 here, not emulated."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() or _is_arm()


def _is_arm() -> bool:
    """Of those that torch runs on, all but the oldest have bf16."""
    return platform.machine() in ("aarch64", "arm64")


class LossScale:
    """The dynamic loss scale of fp16: doubles after `interval` finite steps, halves after an infinite one.

    Lives on the device as tensors, so that only the decision to skip a step asks the device.
    """

    def __init__(self, initial: float, interval: int, device: torch.device) -> None:
        self.scale = torch.tensor(initial, dtype=torch.float32, device=device)
        self._finite_steps = torch.tensor(0, dtype=torch.int32, device=device)
        self._interval = interval

    def update(self, finite: Tensor) -> None:
        """finite: 0-d bool, whether the step's gradients were."""
        steps = torch.where(finite, self._finite_steps + 1, torch.zeros_like(self._finite_steps))
        grow = steps >= self._interval
        factor = torch.where(finite, torch.where(grow, 2.0, 1.0), 0.5)
        # Below 1 a scale only loses gradients; above 2^24 it cannot be told from its neighbour in fp32 sums.
        self.scale.copy_((self.scale * factor).clamp(1.0, 2.0**24))
        self._finite_steps.copy_(torch.where(grow, torch.zeros_like(steps), steps))

    def tensors(self) -> dict[str, Tensor]:
        return {"loss_scale/scale": self.scale, "loss_scale/finite_steps": self._finite_steps}

    def load_tensors(self, values: Mapping[str, Tensor]) -> None:
        for name, tensor in self.tensors().items():
            if name in values:
                tensor.copy_(values[name])


def make_loss_scale(config: PrecisionConfig, device: torch.device) -> LossScale | None:
    if config.dtype != "fp16":
        return None
    return LossScale(config.initial_scale, config.growth_interval, device)
