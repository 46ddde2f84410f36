"""Every optimizer: as many ranks as you like, resumed bit for bit, with what it cannot do told in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.config.load import load_config
from paceline.errors import UserError
from paceline.optim import build
from paceline.optim.build import OPTIMIZERS, check_optimizer, hidden_weights, make_optimizer
from paceline.optim.schedule_free import averaged_by
from tests.loop.runs import largest_difference, train_rank, weights
from tests.ranks import run_ranks

NEW = [name for name in OPTIMIZERS if name not in ("sgd", "adamw")]


def settings(name: str, **more: Any) -> dict[str, Any]:
    return {
        "optim__name": name,
        "optim__schedule": "constant",
        "optim__base_lr": 0.2,
        "optim__clip_norm": 0.5,
        "deterministic": True,
    } | more


@pytest.mark.parametrize("name", NEW)
def test_ranks_agree_and_a_resumed_run_is_bit_equal(tmp_path: Path, name: str) -> None:
    sets = settings(name, optim__decay_norms=False)
    train_rank(tmp_path / "whole", sets)
    run_ranks(train_rank, 2, tmp_path / "ranks", sets)
    assert largest_difference(weights(tmp_path / "ranks"), weights(tmp_path / "whole")) < 1e-9
    # The evaluation after the third step is one that the whole run did not have.
    train_rank(tmp_path / "resumed", sets | {"train__max_steps": 3})
    train_rank(tmp_path / "resumed", sets)
    resumed, whole = weights(tmp_path / "resumed"), weights(tmp_path / "whole")
    assert all(torch.equal(resumed[key], whole[key]) for key in whole)


def test_schedule_free_evaluates_its_average(tmp_path: Path) -> None:
    """Against the optimizer's authors' own way of doing it."""
    import schedulefree

    config = load_config(
        flags={"optim.name": "schedulefree-adamw", "optim.schedule": "constant"}
    ).config
    ours, theirs = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    theirs.load_state_dict(ours.state_dict())
    one: Any = make_optimizer(config.optim, list(ours.named_parameters()))
    other = schedulefree.AdamWScheduleFree(
        theirs.parameters(), lr=config.optim.base_lr, weight_decay=config.optim.weight_decay
    )
    other.train()
    for step in range(4):
        for module, optimizer in ((ours, one), (theirs, other)):
            optimizer.zero_grad()
            module(torch.ones(1, 3, dtype=torch.float64) * step).square().sum().backward()
            optimizer.step()
    trained = [p.detach().clone() for p in ours.parameters()]
    other.eval()
    with averaged_by(one):
        assert all(
            torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
        )
        assert not torch.equal(ours.weight, trained[0])
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), trained, strict=True))


def test_muon_takes_the_weights_between_first_and_last() -> None:
    net = nn.Sequential(
        nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), nn.Linear(8, 2)
    )
    named = list(net.named_parameters())
    assert hidden_weights(named) == {"1.0.weight"} == hidden_weights(named, ["1"])
    config = load_config(flags={"optim.name": "muon"}).config
    optimizer = make_optimizer(config.optim, named, blocks=["1"])
    net(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    by_muon = [name for name, p in named if "momentum_buffer" in optimizer.state[p]]
    assert by_muon == ["1.0.weight"]
    assert sum("exp_avg" in optimizer.state[p] for _, p in named) == len(named) - 1


@pytest.mark.parametrize(
    ("sets", "what"),
    [
        (["optim.name=lars", "optim.momentum=0"], "nesterov = true needs a momentum"),
        (["optim.name=schedulefree-sgd"], "does without a schedule"),
        (
            ["optim.name=schedulefree-sgd", "optim.schedule=constant", "optim.ema_decay=0.9"],
            "averages the weights itself",
        ),
        (
            ["optim.name=schedulefree-sgd", "optim.schedule=constant", "optim.momentum=0"],
            r"needs optim\.momentum",
        ),
    ],
)
def test_what_cannot_be_is_refused(sets: list[str], what: str) -> None:
    with pytest.raises(UserError, match=what):
        load_config(sets=sets)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'paceline\[optim\]'"):
        check_optimizer(load_config(sets=["optim.name=lamb"]).config.optim)
