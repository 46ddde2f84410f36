"""Models for 32 px, as the CIFAR recipes take them; a model.name of `paceline.models.cifar:resnet18`."""

from __future__ import annotations

from typing import Any

from torch import nn


def resnet18(num_classes: int, **options: Any) -> nn.Module:
    """torchvision's ResNet-18 with a 3x3 stem of stride 1 and no pooling after it: 32 px stay 32 px."""
    from torchvision.models import resnet18

    model = resnet18(num_classes=num_classes, **options)
    model.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model
