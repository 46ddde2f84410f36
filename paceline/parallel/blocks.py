"""Transforms a model's blocks in place: recomputation, then compilation. Names and values stay.

A block that is recomputed and compiled is compiled first and runs its compiled form twice: the compiler then sees
nothing of recomputation, and BatchNorm's buffers are no side effect in its graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from paceline.errors import UserError
from paceline.models.patterns import matches, matching


def choose_blocks(
    module: nn.Module, blocks: Sequence[str], setting: str | Sequence[str]
) -> list[str]:
    """Names of the modules that `model.recompute` means: the outermost that a pattern matches."""
    if setting == "none":
        return []
    if setting == "blocks":
        if not blocks:
            raise UserError(
                "model.recompute = 'blocks', and the model has no blocks",
                "name modules by patterns, or give the ModelSpec its blocks",
            )
        return list(blocks)
    names = [name for name, _ in module.named_modules() if name]
    meant = {name for p in setting for name in matching(p, names, "model.recompute")}
    chosen: list[str] = []
    for name in names:  # a module comes before its parts
        if name in meant and not any(matches(outer, name) for outer in chosen):
            chosen.append(name)
    return chosen


def recompute(module: nn.Module, names: Sequence[str]) -> None:
    """Keeps only the inputs of these modules for the backward pass, which computes the rest again.

    Dropout draws the same masks again, and BatchNorm's running statistics see a batch once.
    """
    for name in names:
        block = module.get_submodule(name)
        # A class, as a replica of nn.DataParallel has its own attributes but shares its class.
        kind = type(block)
        if (
            kind not in _RECOMPUTED
        ):  # one for all blocks of a kind: compiled code is shared by class
            about = {"__module__": kind.__module__}
            _RECOMPUTED[kind] = type(kind.__name__, (_Recomputed, kind), about)
        block.__class__ = _RECOMPUTED[kind]


class _Recomputed(nn.Module):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().__call__(*args, **kwargs)
        norms = [part for part in self.modules() if isinstance(part, _BatchNorm)]
        modes = [norm.training for norm in norms]

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return contextlib.nullcontext(), _as_in_first_pass(norms, modes)

        return checkpoint(
            super().__call__, *args, use_reentrant=False, context_fn=contexts, **kwargs
        )


_RECOMPUTED: dict[type[nn.Module], type[nn.Module]] = {}


@contextlib.contextmanager
def _as_in_first_pass(norms: Sequence[_BatchNorm], modes: Sequence[bool]) -> Iterator[None]:
    """Inside, norms have the mode of the first pass, and move copies of their running statistics."""
    kept = [(norm, norm.training, dict(norm._buffers)) for norm in norms]
    for norm, training in zip(norms, modes, strict=True):
        norm.training = training
        for name, buffer in norm._buffers.items():
            norm._buffers[name] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for norm, training, buffers in kept:
            norm.training = training
            norm._buffers.update(buffers)


def compile_blocks(module: nn.Module, names: Sequence[str], mode: str) -> None:
    """Compiles each block in place, or the whole model where it has none.

    The first other batch size, a tail's, is compiled once more with a free size; all later ones then fit.
    """
    settings = torch._dynamo.config
    limit = "recompile_limit" if hasattr(settings, "recompile_limit") else "cache_size_limit"
    # Blocks of one class share the limit: each has its widths, two modes and two sizes.
    setattr(settings, limit, max(getattr(settings, limit), 8 * max(1, len(names))))
    for part in [module.get_submodule(name) for name in names] or [module]:
        part.compile(mode=None if mode == "default" else mode)
