"""Small runs for tests: a data set and a model in fp64, trained through the real loop by one or more ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset

from paceline.config.load import load_config
from paceline.config.schema import RunConfig
from paceline.data.sources.base import BadSample
from paceline.loop.setup import Objects
from paceline.loop.stopping import StopRequest
from paceline.loop.train import run
from paceline.records.folder import RunFolder

NUM_SAMPLES, NUM_CLASSES, BAD = 41, 5, (3, 17, 30)


class Points(Dataset[tuple[Tensor, int]]):
    """41 samples of (2, 8, 8) in a given dtype; those of `bad` cannot be read."""

    def __init__(
        self, dtype: torch.dtype = torch.float64, bad: tuple[int, ...] = (), num: int = NUM_SAMPLES
    ) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(num, 2, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
        self.y = torch.randint(0, NUM_CLASSES, (num,), generator=generator)
        self.bad = bad

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index in self.bad:
            raise BadSample(index, f"sample-{index}", "made bad by the test")
        return self.x[index], int(self.y[index])


class Net(nn.Module):
    def __init__(self, norm: str = "group", dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 8, 3, padding=1)
        self.norm1 = nn.GroupNorm(2, 8) if norm == "group" else nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm1(self.conv1(x)))
        return self.head(self.dropout(torch.tanh(self.conv2(x)).mean(dim=(2, 3))))


def config_of(**sets: Any) -> RunConfig:
    """Defaults of these tests, with `section__key=value` on top."""
    values: dict[str, Any] = {
        "device": "cpu",
        "precision.dtype": "fp64",
        "train.epochs": 2,
        "train.global_batch": 12,
        "train.max_steps": 5,
        "optim.base_lr": 2.0,
        "optim.warmup_epochs": 0.5,
        "checkpoint.background": False,
        "data.workers": 0,
    }
    values |= {key.replace("__", "."): value for key, value in sets.items()}
    return load_config(flags=values).config


def train_rank(
    folder: Path,
    sets: dict[str, Any],
    model: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
) -> str:
    """One rank of a run; for `run_ranks`, or called as it is for a run of one process."""
    run_folder = RunFolder(folder)
    run_folder.create()
    objects = Objects(
        model=lambda: Net(**(model or {})), data=Points(**(data or {})), eval_data=Points(num=13)
    )
    return run(run_folder, config_of(**sets), stop=StopRequest(), objects=objects)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest relative difference over all tensors."""
    assert a.keys() == b.keys()
    return max(
        float((a[n].double() - b[n].double()).norm() / b[n].double().norm().clamp_min(1e-300))
        for n in a
    )
