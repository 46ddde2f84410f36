"""Every recipe says where it comes from, loads strictly, and trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.config.load import load_config
from paceline.errors import UserError
from paceline.loop.stopping import StopRequest
from paceline.loop.train import run
from paceline.models.cifar import resnet18
from paceline.recipes import KEYS, find_recipe, recipes
from paceline.records.folder import RunFolder
from tests.cli.commands import paceline

NAMES = [recipe.name for recipe in recipes()]
TINY = {
    "device": "cpu",
    "data.source": "synthetic",
    "data.num_samples": 16,
    "data.image_size": 32,
    "data.workers": 0,
    "model.name": "small_resnet",
    "model.width": 8,
    "train.max_steps": 2,
    "train.global_batch": 8,
    "parallel.micro_batch": 0,
    "parallel.strategy": "single",
    "precision.dtype": "fp32",
    "checkpoint.background": False,
}


@pytest.mark.parametrize("name", NAMES)
def test_each_says_where_it_comes_from_and_trains(name: str, tmp_path: Path) -> None:
    assert set(find_recipe(name).about) == set(KEYS)
    folder = RunFolder(tmp_path / name)
    folder.create()
    config = load_config(f"recipe:{name}", flags=TINY).config
    assert run(folder, config, stop=StopRequest()) == "finished"
    assert folder.weights.exists()


def test_the_command_lists_and_prints_them(tmp_path: Path) -> None:
    listed = paceline("recipes")
    assert listed.code == 0
    assert all(f"{name}\n" in listed.out for name in NAMES)
    assert "https://arxiv.org/abs/1706.02677" in listed.out
    printed = paceline("recipes", "digits")
    assert printed.out == find_recipe("digits").path.read_text()
    shown = paceline("config", "recipe:resnet50-a3", "--epochs", "2")
    assert "recipe:resnet50-a3 line" in shown.out
    wrong = paceline("train", "recipe:resnet50-a4")
    assert wrong.code == 2
    assert wrong.err == "error: unknown recipe 'resnet50-a4'\n  hint: did you mean 'resnet50-a3'?\n"


def test_an_unknown_recipe_from_python() -> None:
    with pytest.raises(UserError, match="unknown recipe ''"):
        load_config("recipe:")


def test_the_resnet_for_cifar_keeps_its_pixels() -> None:
    model = resnet18(10)
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    seen: list[torch.Size] = []
    model.layer1.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert seen == [torch.Size([2, 64, 32, 32])]
