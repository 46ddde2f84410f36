"""The blocks that are found in models of different make."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn

from paceline.models.blocks import find_blocks


@pytest.mark.parametrize(
    ("name", "num", "first", "last"),
    [
        ("resnet18", 8, "layer1.0", "layer4.1"),
        ("convnext_tiny", 18, "features.1.0", "features.7.2"),
        ("vit_b_16", 12, "encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_11"),
        ("efficientnet_b0", 16, "features.1.0", "features.7.0"),
        ("densenet121", 4, "features.denseblock1", "features.denseblock4"),
    ],
)
def test_of_known_models(name: str, num: int, first: str, last: str) -> None:
    with torch.device("meta"):
        blocks = find_blocks(torchvision.models.get_model(name))
    assert (len(blocks), blocks[0], blocks[-1]) == (num, first, last)


def test_of_plain_models() -> None:
    def layers() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    assert find_blocks(nn.Sequential(layers(), layers(), nn.Linear(2, 2))) == ["0", "1"]
    assert find_blocks(nn.Linear(2, 2)) == []
    module = nn.Module()
    module.first, module.last = layers(), nn.Linear(2, 2)
    assert find_blocks(module) == ["first"]
