"""Channels last: where it is on, that values stay, and what is said where it does not stick."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.parallel.layout import Layout


class Turns(nn.Module):
    """Makes its images contiguous in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.second = nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).contiguous())


def test_on_for_convolutions_where_auto() -> None:
    convolutional, linear = nn.Sequential(nn.Conv2d(3, 4, 3)), nn.Linear(3, 3)
    assert Layout(convolutional, "auto", look=False).channels_last
    assert not Layout(linear, "auto", look=False).channels_last
    assert not Layout(nn.Conv2d(3, 4, 3), False, look=False).channels_last
    assert convolutional[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_inputs_follow_and_values_stay() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).double()
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    before = module(images)
    layout = Layout(module, True, look=True)
    (laid_out, other) = layout.inputs((images, torch.zeros(2)))
    assert laid_out.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(module(laid_out), before) and other.ndim == 1
    assert layout.news() is None


def test_a_layout_that_does_not_stick_is_told_once() -> None:
    module = Turns()
    layout = Layout(module, "auto", look=True)
    for _ in range(2):
        module(*layout.inputs((torch.randn(2, 3, 8, 8),)))
    news = layout.news()
    assert news is not None and "1 of 2 convolutions" in news and "(second)" in news
    assert layout.news() is None
    assert not module.second._forward_pre_hooks
