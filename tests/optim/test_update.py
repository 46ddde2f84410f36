"""An update happens once and whole, wherever memory runs out in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.optim.update import Update


class Greedy(torch.optim.Optimizer):
    """Momentum of its own, parameter by parameter; asks for too much before the `fails_at`-th of all updates."""

    def __init__(self, parameters: Iterable[Tensor], fails_at: set[int]) -> None:
        super().__init__(parameters, {"lr": 0.1, "updates": 0})
        self.fails_at, self.count = fails_at, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["updates"] += 1
            for parameter in group["params"]:
                self.count += 1
                if self.count in self.fails_at:
                    torch.empty(1 << 50)
                state = self.state[parameter]
                state.setdefault("momentum", torch.zeros_like(parameter)).mul_(0.9).add_(
                    parameter.grad
                )
                parameter.sub_(group["lr"] * state["momentum"])


def train(fails_at: set[int], steps: int = 3) -> tuple[list[Tensor], list[str], Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))  # four parameters
    optimizer = Greedy(net.parameters(), fails_at)
    update, words = Update(optimizer), []
    for step in range(steps):
        optimizer.zero_grad()
        net(torch.full((3, 4), float(step + 1))).sum().backward()
        words.append(update.step())
    return [p.detach() for p in net.parameters()], words, optimizer.param_groups[0]["updates"]


def test_the_first_update_is_undone_wherever_it_breaks_off() -> None:
    whole, _, _ = train(set())
    for place in (1, 2, 4):
        weights, words, updates = train({place})
        assert "can't allocate memory" in words[0] and words[1:] == ["", ""]
        assert updates == 3
        assert all(torch.equal(a, b) for a, b in zip(weights, whole, strict=True))


def test_a_later_one_is_done_again_where_nothing_was_touched() -> None:
    whole, _, _ = train(set())
    weights, words, _ = train({9})
    assert [bool(w) for w in words] == [False, False, True]
    assert all(torch.equal(a, b) for a, b in zip(weights, whole, strict=True))
    with pytest.raises(RuntimeError, match="when weights may have changed") as error:
        train({10})
    assert not isinstance(
        error.value, UserError
    )  # which would not be restarted from the checkpoint


def test_what_freeing_does_not_cure_ends_in_a_sentence() -> None:
    with pytest.raises(UserError, match="out of memory in the optimizer's update"):
        train({1, 2})


def test_a_later_one_is_restarted_from_where_fused_kernels_hide_what_they_touched() -> None:
    """Some fused kernels leave torch's counters alone; then nobody can say whether a later update has begun."""
    for make, fused, can_tell in (
        (torch.optim.SGD, False, True),
        (torch.optim.AdamW, True, True),
        (torch.optim.AdamW, False, True),
        (torch.optim.SGD, True, None),
    ):
        net = nn.Linear(3, 3)
        optimizer = make(net.parameters(), lr=0.1, fused=fused)
        update = Update(optimizer)
        for _ in range(2):
            net(torch.ones(2, 3)).sum().backward()
            update.step()
        before = net.weight.detach().clone()
        hook = optimizer.register_step_post_hook(lambda *_: torch.empty(1 << 50))
        with pytest.raises(RuntimeError, match="when weights may have changed"):
            update.step()
        hook.remove()
        assert not torch.equal(before, net.weight)
        if can_tell is not None:
            assert update._counters_move == can_tell
