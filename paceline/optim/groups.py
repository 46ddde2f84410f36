"""Which parameters share a learning rate and a weight decay; works on names and shapes, whatever the strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from paceline.config.schema import FinetuneConfig, OptimConfig
from paceline.errors import UserError
from paceline.models.patterns import matches, matching

Group = dict[str, Any]


def make_groups(
    named: Sequence[tuple[str, nn.Parameter]],
    optim: OptimConfig,
    finetune: FinetuneConfig | None = None,
    blocks: Sequence[str] = (),
) -> list[Group]:
    """Parameter groups as torch's optimizers take them, each with `params`, `names`, `lr_factor` and `weight_decay`.

    blocks: names of the model's blocks, in their order, for layer-wise decay. Every parameter is in one group, in
    its order; without settings that tell them apart there is a single group.
    """
    finetune = finetune or FinetuneConfig()
    names = [name for name, _ in named]
    factors = lr_factors(names, finetune, blocks)
    found: dict[tuple[float, float], Group] = {}
    for name, parameter in named:
        decay = optim.weight_decay if optim.decay_norms or not is_vector(name, parameter) else 0.0
        new = {"params": [], "names": [], "lr_factor": factors[name], "weight_decay": decay}
        group = found.setdefault((factors[name], decay), new)
        group["params"].append(parameter)
        group["names"].append(name)
    return list(found.values())


def is_vector(name: str, parameter: Tensor) -> bool:
    """Whether this is a bias, or a scale or shift of a normalization layer."""
    return parameter.ndim <= 1 or name.rpartition(".")[2] == "bias"


def lr_factors(
    names: Sequence[str], config: FinetuneConfig, blocks: Sequence[str] = ()
) -> dict[str, float]:
    """By what each parameter's learning rate is multiplied."""
    factors = dict.fromkeys(names, 1.0)
    if config.layer_decay < 1:
        depths = block_depths(names, blocks)
        most = len(blocks) + 1
        factors = {name: config.layer_decay ** (most - depth) for name, depth in depths.items()}
    by_pattern: dict[str, float] = {}
    for pattern, factor in config.lr_factors.items():
        chosen = matching(pattern, names, "finetune.lr_factors")
        by_pattern |= dict.fromkeys(chosen, float(factor))
    return {name: factor * by_pattern.get(name, 1.0) for name, factor in factors.items()}


def block_depths(names: Sequence[str], blocks: Sequence[str]) -> dict[str, int]:
    """How deep each parameter lies: 0 before the first block, 1 in it, …, one more than the blocks behind the last.

    What stands between two blocks counts to the later one. names: in the model's order.
    """
    if not blocks:
        raise UserError(
            "finetune.layer_decay needs a model of blocks, and this one has none",
            "use finetune.lr_factors, or give the ModelSpec its blocks",
        )
    inside = {
        name: next((i for i, block in enumerate(blocks, 1) if matches(block, name)), None)
        for name in names
    }
    depths: dict[str, int] = {}
    following = len(blocks) + 1
    for name in reversed(names):
        found = inside[name]
        following = following if found is None else found
        depths[name] = following
    first = next((i for i, name in enumerate(names) if inside[name] is not None), 0)
    return {name: 0 if i < first else depths[name] for i, name in enumerate(names)}
