"""The optimizer's update: it happens once and whole, also where memory runs out in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline.errors import UserError
from paceline.parallel.memory import free_memory, is_out_of_memory, words_of


class Update:
    """`optimizer.step()`, done again where memory ran out in it.

    An update that makes state for parameters (the first does) is the one that memory runs out in. It starts from a
    copy of the weights on the host, so that it is undone exactly, whatever it had changed. Later ones allocate
    little; they are done again where torch's counters of changes say that nothing was touched. Fused kernels may
    leave these counters alone, so it is looked first whether they move.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._num_gradients = -1  # in the last update
        self._watched: list[list[Tensor]] = []  # what an update changes, by parameter
        self._counters_move: bool | None = None  # known after an update that made no state

    def step(self) -> str:
        """Returns what the allocator said, where the update had to be done twice."""
        words = self._attempt()
        if words and self._attempt():
            raise UserError(
                f"out of memory in the optimizer's update, with nothing left to free: {words}",
                "use optim.name = 'sgd', which keeps less, a smaller model or more memory",
            )
        return words

    def _attempt(self) -> str:
        """What the allocator said where the update has not happened; memory was freed then."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        trained = [p for p in parameters if p.grad is not None]
        is_new = len(trained) != self._num_gradients
        makes_state = is_new and any(p not in self._optimizer.state for p in trained)
        if is_new:
            self._watched, self._counters_move = self._tensors_of(trained), None
        # Where the counters are known to stay, reading them in each step would tell nothing.
        start = Start(self._optimizer, [] if self._counters_move is False else self._watched)
        words = ""
        try:
            if makes_state:
                start.keep(parameters)
            self._optimizer.step()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            words = words_of(error)
        if words:
            self._undo(start, words)
            free_memory()
            return words
        if is_new:
            self._num_gradients, self._watched = len(trained), self._tensors_of(trained)
        if self._counters_move is None and not makes_state:
            self._counters_move = start.all_moved
        return ""

    def _undo(self, start: Start, words: str) -> None:
        if start.has_weights:
            start.put_back()
        elif not self._counters_move or start.any_moved:
            # No UserError: the launcher starts the ranks again from the last checkpoint, which is exact.
            raise RuntimeError(
                f"memory ran out in the optimizer's update, when weights may have changed: {words}"
            )

    def _tensors_of(self, parameters: list[Tensor]) -> list[list[Tensor]]:
        state = self._optimizer.state
        return [
            [p, *(v for v in state.get(p, {}).values() if isinstance(v, Tensor))]
            for p in parameters
        ]


class Start:
    """What an update started from."""

    def __init__(self, optimizer: Optimizer, watched: list[list[Tensor]]) -> None:
        self._optimizer = optimizer
        self._watched = watched
        self._versions = [[tensor._version for tensor in each] for each in watched]
        self._weights: list[tuple[Tensor, Tensor]] = []

    @property
    def any_moved(self) -> bool:
        """Whether torch's counters tell of a change."""
        return any(self._moved())

    @property
    def all_moved(self) -> bool:
        """Whether they tell of one for every parameter."""
        return all(self._moved())

    def _moved(self) -> list[bool]:
        return [
            any(tensor._version != version for tensor, version in zip(*each, strict=True))
            for each in zip(self._watched, self._versions, strict=True)
        ]

    @property
    def has_weights(self) -> bool:
        return bool(self._weights)

    def keep(self, parameters: list[Tensor]) -> None:
        """Copies what an update may change that makes state for parameters without any."""
        self._had_state = {p: _copies(state) for p, state in self._optimizer.state.items()}
        self._groups = [_without_parameters(group) for group in self._optimizer.param_groups]
        self._weights = [(p, p.detach().to("cpu", copy=True)) for p in parameters]

    def put_back(self) -> None:
        state = self._optimizer.state
        with torch.no_grad():
            for parameter, kept in self._weights:
                parameter.copy_(kept)
            for parameter in list(state):
                if parameter not in self._had_state:
                    del state[parameter]
            for parameter, values in self._had_state.items():
                for key, value in values.items():
                    state[parameter][key].copy_(value)
        for group, kept_group in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(kept_group)


def _copies(state: dict[str, Any]) -> dict[str, Tensor]:
    """Of a parameter's state that is there already: when others are unfrozen, or none where all is new."""
    return {k: v.to("cpu", copy=True) for k, v in state.items() if isinstance(v, Tensor)}


def _without_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}
