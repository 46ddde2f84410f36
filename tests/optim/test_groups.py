"""Parameter groups: against factors worked out by hand for a ResNet, a ConvNeXt and a ViT."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from paceline.config.load import load_config
from paceline.config.schema import RunConfig
from paceline.errors import UserError
from paceline.models.blocks import find_blocks
from paceline.optim.build import make_optimizer, set_learning_rate
from paceline.optim.groups import lr_factors, make_groups


def config_of(values: dict[str, Any]) -> RunConfig:
    return load_config(flags=values).config


def factors_of(name: str, values: dict[str, Any]) -> dict[str, float]:
    with torch.device("meta"):
        module = torchvision.models.get_model(name, num_classes=3)
    names = [name for name, _ in module.named_parameters()]
    return lr_factors(names, config_of(values).finetune, find_blocks(module))


@pytest.mark.parametrize(
    ("model", "exponents"),
    [
        (
            "resnet18",  # 8 blocks: the stem lies 9 steps from the head
            {
                "conv1.weight": 9,
                "bn1.bias": 9,
                "layer1.0.conv1.weight": 8,
                "layer2.0.downsample.0.weight": 6,
                "layer4.1.bn2.weight": 1,
                "fc.weight": 0,
            },
        ),
        (
            "convnext_tiny",  # 3 + 3 + 9 + 3 blocks; what makes smaller counts to the block behind it
            {
                "features.0.0.weight": 19,
                "features.1.0.layer_scale": 18,
                "features.1.2.block.0.weight": 16,
                "features.2.1.weight": 15,
                "features.3.0.block.0.weight": 15,
                "features.7.2.block.3.bias": 1,
                "classifier.2.weight": 0,
            },
        ),
        (
            "vit_b_16",
            {
                "class_token": 13,
                "conv_proj.weight": 13,
                "encoder.pos_embedding": 13,
                "encoder.layers.encoder_layer_0.ln_1.weight": 12,
                "encoder.layers.encoder_layer_10.mlp.0.weight": 2,
                "encoder.layers.encoder_layer_11.mlp.3.bias": 1,
                "encoder.ln.weight": 0,
                "heads.head.weight": 0,
            },
        ),
    ],
)
def test_layer_decay(model: str, exponents: dict[str, int]) -> None:
    factors = factors_of(model, {"finetune.layer_decay": 0.5})
    for name, exponent in exponents.items():
        assert factors[name] == 0.5**exponent, name


def test_patterns_multiply_and_the_last_counts() -> None:
    values = {
        "finetune.layer_decay": 0.5,
        "finetune.lr_factors": {"*": 3.0, "fc": 10.0, "layer4.*.bias": 0.0},
    }
    factors = factors_of("resnet18", values)
    assert factors["fc.weight"] == 10
    assert factors["layer4.1.conv1.weight"] == 3 * 0.5
    assert factors["layer4.1.bn2.bias"] == 0


def test_norms_and_biases_decay_only_where_asked() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 2))
    named = list(module.named_parameters())
    (whole,) = make_groups(named, config_of({}).optim)
    assert whole["names"] == [name for name, _ in named]
    assert whole["weight_decay"] == 5e-4 and whole["lr_factor"] == 1
    weights, vectors = make_groups(named, config_of({"optim.decay_norms": False}).optim)
    assert weights["names"] == ["0.weight", "2.weight"]
    assert vectors["names"] == ["0.bias", "1.weight", "1.bias", "2.bias"]
    assert (weights["weight_decay"], vectors["weight_decay"]) == (5e-4, 0.0)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_every_group_has_its_own_rate(name: str) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    config = config_of({"optim.name": name, "finetune.lr_factors": {"1": 0.25}})
    optimizer = make_optimizer(
        config.optim, list(module.named_parameters()), finetune=config.finetune
    )
    set_learning_rate(optimizer, 0.8)
    assert [group["lr"] for group in optimizer.param_groups] == [0.8, 0.2]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"finetune.lr_factors": {"layer5": 1.0}}, "'layer5' matches no parameter.*\n.*layer4"),
        ({"finetune.lr_factors": {"fc": "fast"}}, "is no factor"),
        ({"finetune.unfreeze": {"fc": 0}}, "is no number of epochs"),
        ({"finetune.layer_decay": 1.5}, "is too large"),
        ({"finetune.freeze": "fc"}, "is not a list of strings"),
        ({"finetune.freeze": ["fc", 3]}, "holds a value that is not a string"),
    ],
)
def test_bad_input(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=f"(?s){told}"):
        factors_of("resnet18", values)


def test_a_model_without_blocks_has_no_layers_to_decay() -> None:
    with pytest.raises(UserError, match="needs a model of blocks"):
        lr_factors(["weight"], config_of({"finetune.layer_decay": 0.5}).finetune, [])
