"""Makes the optimizer from the configuration; which parameters it gets is the strategy's business."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.config.schema import FinetuneConfig, OptimConfig
from paceline.optim.groups import make_groups


def make_optimizer(
    config: OptimConfig,
    named: Sequence[tuple[str, nn.Parameter]],
    *,
    finetune: FinetuneConfig | None = None,
    blocks: Sequence[str] = (),
) -> Optimizer:
    """An optimizer over named parameters; its learning rates are set before every step.

    Fused kernels where torch has them for all of the parameters' devices and dtypes: one pass over memory.
    finetune, blocks: what groups the parameters, see `make_groups`.
    """
    parameters = [parameter for _, parameter in named]
    groups = make_groups(named, config, finetune, blocks)
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    if config.name == "sgd":
        return torch.optim.SGD(
            groups,
            lr=config.base_lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
            fused=fused,
        )
    return torch.optim.AdamW(
        groups,
        lr=config.base_lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=fused,
    )


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Each group's rate: the schedule's, times the group's own factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]
