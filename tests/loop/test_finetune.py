"""Fine-tuning through the real loop: what is frozen stays, unfreezing under ddp and across a resume, new heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.config.load import load_config
from paceline.errors import UserError
from paceline.loop.setup import Objects
from paceline.loop.stopping import StopRequest
from paceline.loop.train import run
from paceline.parallel.freezing import Freezing
from paceline.records.folder import RunFolder
from tests.loop.runs import Net, largest_difference, train_rank, weights
from tests.loop.test_resume import assert_equal, everything, remove_newer, train
from tests.ranks import run_ranks

# 41 samples in steps of 12: an epoch has 4 steps, and conv2 is trained from the fifth on.
GRADUAL: dict[str, Any] = {
    "finetune__probe": True,
    "finetune__unfreeze": {"conv2": 1},
    "finetune__lr_factors": {"conv2": 0.5},
    "optim__name": "adamw",
    "optim__base_lr": 0.2,
    "train__max_steps": 8,
}


def initial() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return dict(Net("batch").double().state_dict())


def moved(folder: Path) -> set[str]:
    """The parts of the model that differ from the start."""
    now, before = weights(folder), initial()
    return {n.partition(".")[0] for n in now if not torch.equal(now[n].double(), before[n])}


def test_ranks_agree_on_gradual_unfreezing(tmp_path: Path) -> None:
    train_rank(tmp_path / "1", GRADUAL, {"norm": "group"})
    run_ranks(train_rank, 2, tmp_path / "2", GRADUAL, {"norm": "group"})
    assert largest_difference(weights(tmp_path / "1"), weights(tmp_path / "2")) < 1e-9
    lines = (tmp_path / "2" / "records" / "rank-0.jsonl").read_text().splitlines()
    notes = json.loads(lines[0])["notes"]
    assert any("are frozen; more are trained after 1 epochs" in note for note in notes)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_unfreezing_goes_on_bit_equal(tmp_path: Path, num_ranks: int) -> None:
    """Stopped before and after the unfreezing, in one test since starting ranks is what costs."""
    every = {"checkpoint__every_steps": 3, "checkpoint__keep_last": 9}
    train(tmp_path / "whole", num_ranks, **GRADUAL, **every)
    assert moved(tmp_path / "whole") >= {"head", "conv2"}
    for stop in (3, 6) if num_ranks > 1 else (4,):
        sets = GRADUAL | every | ({"checkpoint__every_steps": 4} if stop == 4 else {})
        train(tmp_path / str(stop), num_ranks, **sets)
        remove_newer(tmp_path / str(stop), stop)
        train(tmp_path / str(stop), num_ranks, **sets)
        assert_equal(everything(tmp_path / str(stop)), everything(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("sets", "parts"),
    [
        ({"finetune__probe": True}, {"head", "norm1"}),  # norm1: its running statistics
        ({"finetune__probe": True, "finetune__frozen_batchnorm": True}, {"head"}),
        (
            {"finetune__freeze": ["conv?.weight", "norm1"], "finetune__frozen_batchnorm": True},
            {"conv1", "conv2", "head"},
        ),
    ],
)
def test_what_is_frozen_stays(tmp_path: Path, sets: dict[str, Any], parts: set[str]) -> None:
    train_rank(tmp_path, sets, {"norm": "batch"})
    assert moved(tmp_path) == parts
    if "finetune__freeze" in sets:
        assert torch.equal(weights(tmp_path)["conv1.weight"], initial()["conv1.weight"])


class Two(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


def finetune_from(tmp_path: Path, source: Path, **values: Any) -> tuple[list[str], RunFolder]:
    """Trains a head of 5 classes on weights of another model; the notes and the folder of the run."""
    folder = RunFolder(tmp_path / "tuned")
    folder.create()
    config = load_config(
        flags={"device": "cpu", "train.epochs": 1, "train.max_steps": 1, "data.workers": 0}
        | {"model.weights": str(source), "finetune.probe": True}
        | {key.replace("__", "."): value for key, value in values.items()}
    ).config
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.arange(64) % 5)
    data.num_classes = 5  # type: ignore[attr-defined]
    run(folder, config, stop=StopRequest(), objects=Objects(model=lambda: Two(5), data=data))
    first = (folder.path / "records" / "rank-0.jsonl").read_text().splitlines()[0]
    return json.loads(first)["notes"], folder


def test_a_head_is_replaced_and_told(tmp_path: Path) -> None:
    old = Two(3)
    state = {f"module._orig_mod.{name}": value for name, value in old.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "old.pth")
    notes, folder = finetune_from(tmp_path, tmp_path / "old.pth")
    assert "a new head, not from the weights: head.weight, head.bias" in notes
    assert torch.equal(weights(folder.path)["body.weight"], old.body.weight)
    with pytest.raises(UserError, match=r"head.weight has shape \(3, 4\), the model \(5, 4\)"):
        finetune_from(tmp_path / "strict", tmp_path / "old.pth", model__head="strict")
    # A run folder stands for its weights.
    notes, _ = finetune_from(tmp_path / "again", folder.path, finetune__probe=False)
    assert not any("head" in note for note in notes)
    (folder.path / "model.safetensors").unlink()  # as of a run that has not finished
    _, third = finetune_from(tmp_path / "third", folder.path)
    assert torch.equal(weights(third.path)["body.weight"], old.body.weight)


def test_what_cannot_be_a_new_head_is_listed(tmp_path: Path) -> None:
    state = Two(3).state_dict() | {"body.weight": torch.zeros(2, 4), "extra": torch.zeros(1)}
    torch.save(state, tmp_path / "other.pth")
    told = r"body.weight has shape \(2, 4\), the model \(4, 4\); extra is not in the model"
    with pytest.raises(UserError, match=told):
        finetune_from(tmp_path, tmp_path / "other.pth")


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("executed"),))


def test_a_file_that_would_run_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"a": torch.zeros(1)}, "more": Hostile()}, "hostile.pth")
    with pytest.raises(UserError, match=r"hostile.pth holds more than tensors"):
        finetune_from(tmp_path, Path("hostile.pth"))
    assert not Path("executed").exists()
    torch.save({"model": {"weight": 5}}, "numbers.pth")
    with pytest.raises(UserError, match=r"numbers.pth holds weight where a model's state"):
        finetune_from(tmp_path / "b", Path("numbers.pth"))
    Path("cut.pt").write_bytes(Path("numbers.pth").read_bytes()[:60])
    with pytest.raises(UserError, match=r"cut.pt is no file that torch.save wrote"):
        finetune_from(tmp_path / "c", Path("cut.pt"))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"finetune.freeze": ["conv3"]}, "finetune.freeze: 'conv3' matches no.*\n.*conv"),
        ({"finetune.freeze": ["*"]}, "every parameter of the model is frozen"),
        ({"finetune.unfreeze": {"conv1": 1}}, "nothing that 'conv1' matches is frozen"),
    ],
)
def test_patterns_that_cannot_be_meant(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=f"(?s){told}"):
        Freezing(Net(), load_config(flags=values).config.finetune, ["head"])
