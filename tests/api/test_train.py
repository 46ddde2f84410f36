"""`paceline.train` from Python: objects, notebooks' ways, resuming, what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import paceline
from paceline.errors import RankFailedError, UserError

TINY = {
    "device": "cpu",
    "train.epochs": 2,
    "train.global_batch": 16,
    "launch.max_restarts": 0,
    "optim.base_lr": 1.0,
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def regression(num: int = 64) -> TensorDataset:
    x = torch.randn(num, 3, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x @ torch.tensor([[1.0], [2.0], [3.0]]))


def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs().mean(dim=1)


def test_objects_in_this_process_leave_the_module_trained(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    before = model.weight.detach().clone()
    result = paceline.train(
        TINY | {"parallel.strategy": "single"},
        model=model,
        data=regression(),
        eval_data=regression(32),
        loss=nn.MSELoss(),
        metrics={"absolute_error": absolute_error},
        run="r",
        show=False,
    )
    assert result.status == "finished"
    assert result.weights == Path("r/model.safetensors")
    assert set(result.metrics) == {"loss", "absolute_error", "best_loss"}
    assert not torch.equal(model.weight, before)
    x, y = regression(32).tensors
    error = float(functional.mse_loss(model(x).detach(), y))
    assert error == pytest.approx(result.metrics["loss"], rel=1e-5)


SCRIPT = """
import paceline, torch
from torch import nn

class Net(nn.Module):  # defined here, where no rank can import it
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
    def forward(self, x):
        return self.layer(x)

torch.manual_seed(0)
x = torch.randn(64, 3)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = Net()
print("imported once")
result = paceline.train(
    {"device": "cpu", "parallel.ranks": 2, "train.epochs": 10, "train.global_batch": 16, "optim.base_lr": 1.0},
    model=model, data=data, loss=lambda output, target: (output - target).square(), run="r", show=False,
)
assert float((model(x) - x.sum(1, keepdim=True)).detach().square().mean()) < 0.1
print(result.status, result.step)
"""


def test_a_script_without_a_guard_trains_on_ranks_and_is_run_once(tmp_path: Path) -> None:
    Path("script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["imported once", "finished 40"]
    assert not list(Path("/tmp").glob("paceline-objects-*"))


def test_the_same_script_under_torchrun(tmp_path: Path) -> None:
    Path("script.py").write_text(SCRIPT.replace('{"device"', '{"records.sinks": ["csv"], "device"'))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run([*command, "script.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path("r/model.safetensors").exists()
    assert len(Path("r/csv/steps.csv").read_text().splitlines()) == 1 + 40
    assert '"num_ranks":2' in Path("r/records/rank-1.jsonl").read_text().replace(" ", "")


def test_a_loss_with_one_value_is_refused() -> None:
    with pytest.raises(UserError, match=r"loss returned shape \(\) for 16 samples"):
        paceline.train(
            TINY | {"parallel.strategy": "single"},
            model=nn.Linear(3, 1),
            data=regression(),
            loss=lambda output, target: (output - target).square().mean(),
            show=False,
        )


def test_a_model_that_is_none() -> None:
    with pytest.raises(UserError, match="model= is a str"):
        paceline.train(TINY | {"parallel.strategy": "single"}, model="resnet18", data=regression())


def broken() -> nn.Module:
    raise RuntimeError("no weights today")


def test_a_crash_of_the_users_code_is_named_with_its_rank(tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match="no weights today") as failed:
        paceline.train(
            TINY | {"parallel.ranks": 2}, model=broken, data=regression(), run="r", show=False
        )
    assert "logs/rank-" in str(failed.value)
    assert "no weights today" in Path("r/logs/rank-0.log").read_text()


def test_resuming_by_name_and_the_refusals(tmp_path: Path) -> None:
    small = TINY | {
        "model.width": 8,
        "train.global_batch": 64,
        "parallel.ranks": 1,
        "train.max_steps": 3,
    }
    first = paceline.train(small, run="a", show=False)
    assert first.step == 3
    assert paceline.train({"train.max_steps": 5}, resume="a", show=False).step == 5
    with pytest.raises(UserError, match="run folder a exists"):
        paceline.train(small, run="a", show=False)
    with pytest.raises(UserError, match="does not exist"):
        paceline.train(small, resume="nowhere", show=False)
    with pytest.raises(UserError, match="neither a run folder nor a checkpoint"):
        paceline.train(small, resume="a/logs", show=False)
    back = paceline.train({"train.max_steps": 4}, resume="a/checkpoints/step-00000003", show=False)
    assert back.step == 4
    assert [p.name for p in Path("a/checkpoints").glob("aside-*-step-00000005")]
    copy = paceline.train(small, run="b", resume="a/checkpoints/step-00000004", show=False)
    assert copy.step == 4  # max_steps = 3 is done already
