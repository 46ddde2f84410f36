"""Makes the optimizer from the configuration; which parameters it gets is the strategy's business."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.config.schema import FinetuneConfig, OptimConfig
from paceline.errors import UserError
from paceline.models.patterns import matches
from paceline.optim.groups import Group, make_groups

Arguments = dict[str, Any]


class Entry(NamedTuple):
    """An optimizer by name.

    make: of groups and the arguments that all take. arguments: its own. package: what must be installed.
    kept: what it counts in its groups, to be saved with its state.
    """

    make: Callable[..., Optimizer]
    arguments: Callable[[OptimConfig], Arguments]
    package: str = "torch"
    kept: tuple[str, ...] = ()


def _timm(name: str) -> Callable[..., Optimizer]:
    def make(groups: Sequence[Group], **arguments: Any) -> Optimizer:
        import timm.optim

        optimizer: Optimizer = getattr(timm.optim, name)(groups, **arguments)
        return optimizer

    return make


def _schedule_free(name: str) -> Callable[..., Optimizer]:
    def make(groups: Sequence[Group], **arguments: Any) -> Optimizer:
        import schedulefree

        optimizer = getattr(schedulefree, name)(groups, **arguments)
        optimizer.train()
        made: Optimizer = optimizer
        return made

    return make


def _with_momentum(config: OptimConfig) -> Arguments:
    return {"momentum": config.momentum, "nesterov": config.nesterov}


def _with_betas(config: OptimConfig) -> Arguments:
    return {"betas": config.betas, "eps": config.eps}


def _of_lamb(config: OptimConfig) -> Arguments:
    return {**_with_betas(config), "max_grad_norm": None}  # clipping is optim.clip_norm's


def _of_muon(config: OptimConfig) -> Arguments:
    """Its rate is scaled to AdamW's size of a step, so that one rate does for both kinds of parameters."""
    return {**_with_momentum(config), "betas": config.betas, "adjust_lr_fn": "match_rms_adamw"}


_SCHEDULE_FREE = ("k", "weight_sum", "lr_max")

OPTIMIZERS = {
    "sgd": Entry(torch.optim.SGD, _with_momentum),
    "adamw": Entry(torch.optim.AdamW, _with_betas),
    "adam": Entry(torch.optim.Adam, _with_betas),
    "lars": Entry(_timm("Lars"), _with_momentum, "timm"),
    "lamb": Entry(_timm("Lamb"), _of_lamb, "timm", ("step",)),
    "muon": Entry(_timm("Muon"), _of_muon, "timm"),
    "schedulefree-sgd": Entry(
        _schedule_free("SGDScheduleFree"),
        lambda config: {"momentum": config.momentum},
        "schedulefree",
        _SCHEDULE_FREE,
    ),
    "schedulefree-adamw": Entry(
        _schedule_free("AdamWScheduleFree"), _with_betas, "schedulefree", _SCHEDULE_FREE
    ),
}


def check_optimizer(config: OptimConfig) -> None:
    """Raises UserError where what the optimizer comes from is missing."""
    package = OPTIMIZERS[config.name].package
    if importlib.util.find_spec(package) is None:
        raise UserError(
            f"optim.name = {config.name!r} needs the package {package}, which is not installed",
            "pip install 'paceline[optim]', or take sgd, adamw or adam",
        )


def make_optimizer(
    config: OptimConfig,
    named: Sequence[tuple[str, nn.Parameter]],
    *,
    finetune: FinetuneConfig | None = None,
    blocks: Sequence[str] = (),
) -> Optimizer:
    """An optimizer over named parameters; its learning rates are set before every step.

    Torch's own have fused kernels where torch has them for all of the parameters' devices and dtypes: one pass over
    memory. finetune, blocks: what groups the parameters, see `make_groups`.
    """
    entry = OPTIMIZERS[config.name]
    groups = make_groups(named, config, finetune, blocks)
    if config.name == "muon":
        hidden = hidden_weights(named, blocks)
        groups = [part for group in groups for part in _told_apart(group, hidden)]
    arguments = entry.arguments(config)
    if entry.package == "torch":
        arguments["fused"] = all(
            p.is_floating_point() and p.device.type in ("cpu", "cuda") for _, p in named
        )
    groups = [{**group, "kept": entry.kept} for group in groups]
    return entry.make(groups, lr=config.base_lr, weight_decay=config.weight_decay, **arguments)


def hidden_weights(
    named: Sequence[tuple[str, nn.Parameter]], blocks: Sequence[str] = ()
) -> set[str]:
    """What Muon is for: matrices and convolutions between the first layer and the last.

    Those inside the model's blocks; of a model without blocks, all but the first and the last.
    """
    weights = [name for name, parameter in named if parameter.ndim >= 2]
    inside = {name for name in weights if any(matches(block, name) for block in blocks)}
    return inside or set(weights[1:-1])


def _told_apart(group: Group, hidden: set[str]) -> list[Group]:
    """The group's parameters that Muon trains, and those that its AdamW does; without empty groups."""
    parts = []
    for fallback in (False, True):
        chosen = [i for i, name in enumerate(group["names"]) if (name not in hidden) == fallback]
        if chosen:
            own = {key: [group[key][i] for i in chosen] for key in ("params", "names")}
            parts.append({**group, **own, "use_fallback": fallback})
    return parts


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Each group's rate: the schedule's, times the group's own factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]
