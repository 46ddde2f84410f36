"""A ResNet for small images (8 to 64 px), with GroupNorm or BatchNorm: what `paceline train` starts with."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

MakeNorm = Callable[[int], nn.Module]


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(min(8, channels), channels)


class Block(nn.Module):
    """The basic residual block (He et al. 2015, figure 2), with normalization before the sum."""

    def __init__(self, channels_in: int, channels: int, stride: int, norm: MakeNorm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), norm(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return self.relu(y + self.shortcut(x))


class SmallResNet(nn.Module):
    """(n, channels, height, width) → (n, num_classes); three stages of one block, each half as large."""

    def __init__(
        self,
        channels: int,
        num_classes: int,
        *,
        width: int = 32,
        norm: str = "group",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        make_norm: MakeNorm = group_norm if norm == "group" else nn.BatchNorm2d
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = make_norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.stages = nn.Sequential(
            Block(width, width, 1, make_norm),
            Block(width, 2 * width, 2, make_norm),
            Block(2 * width, 4 * width, 2, make_norm),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.relu(self.norm(self.conv(x))))
        return self.head(self.dropout(self.pool(x).flatten(1)))
