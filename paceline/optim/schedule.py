"""The learning rate as a pure function of the optimizer step: nothing to save, nothing to step once a rank."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.config.schema import OptimConfig

REFERENCE_BATCH = (
    256  # where base_lr is stated (Goyal et al. 2017, "Accurate, Large Minibatch SGD")
)


@dataclass(frozen=True)
class Schedule:
    config: OptimConfig
    global_batch: int
    steps_per_epoch: int
    total_steps: int

    @property
    def peak(self) -> float:
        """base_lr, scaled linearly with the global batch where so configured."""
        scale = self.global_batch / REFERENCE_BATCH if self.config.lr_scaling == "linear" else 1.0
        return self.config.base_lr * scale

    @property
    def warmup_steps(self) -> int:
        return min(round(self.config.warmup_epochs * self.steps_per_epoch), self.total_steps)

    def learning_rate(self, step: int) -> float:
        """The rate of optimizer step `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.config.schedule == "cosine":
            length = max(1, self.total_steps - self.warmup_steps)
            progress = min(1.0, (step - self.warmup_steps) / length)
            low = self.config.min_lr
            return low + (self.peak - low) * 0.5 * (1.0 + math.cos(math.pi * progress))
        if self.config.schedule == "step":
            drops = step // (self.config.step_epochs * self.steps_per_epoch)
            return self.peak * float(self.config.step_factor**drops)
        return self.peak
