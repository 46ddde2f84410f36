"""The parts of a model: its blocks, which recomputation, compilation and layer-wise rates take one by one; its head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

_CONTAINERS = (nn.Sequential, nn.ModuleList)


def find_blocks(module: nn.Module) -> list[str]:
    """Names of the blocks in the model's order; none lies in another.

    A block is a child of a Sequential or ModuleList that has parts of its own and does not consist of several like
    parts itself: a residual block rather than its stage, a transformer layer rather than its MLP. Where there is
    none, Sequentials of plain layers are taken, then the model's own direct parts.
    """
    return (
        list(_inside(module, "", plain=False))
        or list(_inside(module, "", plain=True))
        or [name for name, child in module.named_children() if _has_parts(child)]
    )


def _inside(module: nn.Module, prefix: str, *, plain: bool) -> Iterator[str]:
    in_container = isinstance(module, _CONTAINERS)
    for name, child in module.named_children():
        full = f"{prefix}{name}"
        is_plain = isinstance(child, _CONTAINERS) and not any(map(_has_parts, child.children()))
        if is_plain:
            if plain and in_container and _has_parts(child):
                yield full
        elif in_container and not isinstance(child, _CONTAINERS) and not _repeats(child):
            if _has_parts(child):
                yield full
        else:
            yield from _inside(child, f"{full}.", plain=plain)


def _has_parts(module: nn.Module) -> bool:
    return any(True for _ in module.children())


def _repeats(module: nn.Module) -> bool:
    """Whether a container in this module holds several blocks of one class."""
    for part in module.modules():
        if isinstance(part, _CONTAINERS):
            kinds = Counter(
                type(child)
                for child in part.children()
                if _has_parts(child) and not isinstance(child, _CONTAINERS)
            )
            if any(count > 1 for count in kinds.values()):
                return True
    return False


def find_head(module: nn.Module) -> list[str]:
    """Names of the layers that give the output: the last with a weight matrix, and those of auxiliary heads."""
    layers = [
        name
        for name, part in module.named_modules()
        if not _has_parts(part) and any(p.ndim > 1 for p in part.parameters(recurse=False))
    ]
    last = {name.partition(".")[0]: name for name in layers}  # of each direct part of the model
    heads = [name for part, name in last.items() if part.lower().startswith("aux")]
    return [*heads, *(name for name in layers[-1:] if name not in heads)]
