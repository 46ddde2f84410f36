"""Models by name, by function and as objects; what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.config.load import load_config
from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.models.registry import make_spec
from paceline.models.spec import ModelSpec


def spec_of(name: str, channels: int = 3, num_classes: int = 7, **options: Any) -> ModelSpec:
    config = load_config(flags={"model.name": name, "model.options": options}).config
    return make_spec(config, channels=channels, num_classes=num_classes)


def batch(channels: int, size: int, num: int = 4) -> Batch:
    data = {"input": torch.randn(num, channels, size, size), "target": torch.arange(num)}
    return Batch(data, torch.arange(num), torch.ones(num), num)


@pytest.mark.parametrize(
    ("name", "size"),
    [("small_resnet", 8), ("resnet18", 32)],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_named_model_gives_sums_and_gradients(name: str, size: int, channels: int) -> None:
    spec = spec_of(name, channels)
    module = spec.build()
    some = batch(channels, size, 2)
    sums = spec.loss(module(*spec.inputs(some)), some)
    sums.loss.backward()
    assert float(sums.count) == 2
    assert set(sums.metrics) == set(spec.metrics) == {"accuracy"}
    assert all(p.grad is not None for p in module.parameters())


def test_auxiliary_heads_take_part_in_training() -> None:
    spec = spec_of("googlenet", init_weights=False)
    some = batch(3, 64, 2)
    module = spec.build()
    spec.loss(module(*spec.inputs(some)), some).loss.backward()
    assert module.get_parameter("aux1.fc2.weight").grad is not None


def test_weight_0_leaves_a_row_out() -> None:
    spec = spec_of("small_resnet")
    module, some = spec.build(), batch(3, 8)
    lighter = Batch(some.data, some.indices, torch.tensor([1.0, 0, 1, 0]), 2)
    kept = Batch({k: v[::2] for k, v in some.data.items()}, some.indices[::2], torch.ones(2), 2)
    a = spec.loss(module(*spec.inputs(lighter)), lighter)
    b = spec.loss(module(*spec.inputs(kept)), kept)
    assert torch.allclose(a.loss, b.loss)
    assert float(a.count) == float(b.count) == 2


def test_a_function_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n"
        "def net(num_classes, width=3): return nn.Sequential(nn.Flatten(), nn.Linear(width, num_classes))\n"
        "def wrong(): return 5\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = spec_of("my_models:net", width=12).build()
    assert [tuple(p.shape) for p in module.parameters()] == [(7, 12), (7,)]
    with pytest.raises(UserError, match="returned a int"):
        spec_of("my_models:wrong")
    with pytest.raises(UserError, match="did you mean 'net'"):
        spec_of("my_models:nett")
    with pytest.raises(UserError, match="could not be built"):
        spec_of("my_models:net", depth=5)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("resnet19", {}, "did you mean 'resnet1"),
        ("resnet18", {"layers": 3}, "could not be built"),
        ("no_such_module:net", {}, "no_such_module"),
    ],
)
def test_wrong_names(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        spec_of(name, **options).build()


def test_objects() -> None:
    module = nn.Linear(3, 2)
    config = load_config().config
    assert make_spec(config, channels=0, num_classes=2, model=module).build() is module
    assert isinstance(
        make_spec(config, channels=0, num_classes=2, model=lambda: module).build(), nn.Linear
    )
    spec = spec_of("small_resnet")
    assert make_spec(config, channels=0, num_classes=2, model=spec).build is spec.build
    with pytest.raises(UserError, match="model= is a str"):
        make_spec(config, channels=0, num_classes=2, model="resnet18")
