"""An optimizer's state by the names of its parameters, to save and to load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_GROUP = "group."  # before the name of what an optimizer keeps a group, and here stands at each parameter


def optimizer_tensors(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """optimizer/NAME/KEY of every tensor in the state, optimizer/NAME/group.KEY of a group's own.

    names: of parameters by their id. A group says under "kept" what the optimizer counts in it, such as its steps;
    numbers become float64, which holds them exactly.
    """
    values: dict[str, Tensor] = {}
    for group in optimizer.param_groups:
        kept = {key: group[key] for key in group.get("kept", ()) if key in group}
        for parameter in group["params"]:
            prefix = f"optimizer/{names[id(parameter)]}/"
            state = optimizer.state.get(parameter, {})
            values |= {f"{prefix}{k}": v for k, v in state.items() if isinstance(v, Tensor)}
            values |= {f"{prefix}{_GROUP}{k}": _as_tensor(v) for k, v in kept.items()}
    return values


def load_optimizer_tensors(
    values: Mapping[str, Tensor], optimizer: Optimizer, names: Mapping[int, str]
) -> None:
    """Takes values as `optimizer_tensors` names them; a group's own from the first of its parameters that has them."""
    state: dict[int, dict[str, Tensor]] = {}
    groups = optimizer.state_dict()["param_groups"]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        found = _below(f"optimizer/{names[id(parameter)]}/", values)
        own = {k: _laid_out_as(parameter, v) for k, v in found.items() if not k.startswith(_GROUP)}
        if own:
            state[index] = own
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for group in optimizer.param_groups:
        for parameter in reversed(group["params"]):
            found = _below(f"optimizer/{names[id(parameter)]}/{_GROUP}", values)
            group.update({key: _like(group.get(key), found[key]) for key in found})


def _laid_out_as(parameter: Tensor, value: Tensor) -> Tensor:
    """The state in the memory layout of its parameter: fused kernels read both in one order."""
    if value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def _below(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}


def _as_tensor(value: Any) -> Tensor:
    return value.clone() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _like(now: Any, value: Tensor) -> Any:
    """A loaded value of the kind that the optimizer keeps there; before its first step it may have none."""
    return type(now)(value.item()) if isinstance(now, (int, float)) else value.clone()
