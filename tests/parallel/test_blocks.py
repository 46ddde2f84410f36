"""Recomputation and compilation of blocks: the same numbers, statistics counted once, names unchanged."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.models.blocks import find_blocks
from paceline.parallel.blocks import choose_blocks, compile_blocks, recompute


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh())
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.layers(x))


def model() -> nn.Sequential:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(Block(), Block()), nn.Flatten())
    return module.double()


def passes(module: nn.Module, *sizes: int) -> list[Tensor]:
    """Gradients and buffers after a forward and backward pass of each size."""
    for i, size in enumerate(sizes):
        torch.manual_seed(10 + i)
        x = torch.randn(size, 3, 5, 5, dtype=torch.float64)
        module(x).square().mean().backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return [*gradients, *module.buffers()]


def test_recomputation_changes_no_number_and_no_name() -> None:
    plain = model()
    again = copy.deepcopy(plain)
    recompute(again, choose_blocks(again, find_blocks(again), "blocks"))
    calls = []
    for module in (plain, again):
        for name in ("1.0", "1.1"):
            module.get_submodule(name).register_forward_pre_hook(lambda m, x: calls.append(m))
    expected = passes(plain, 6, 4)
    assert len(calls) == 4
    found = passes(again, 6, 4)
    assert len(calls) == 4 + 8, "each block runs a second time in backward"
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert again.get_buffer("1.0.layers.1.num_batches_tracked") == 2
    assert list(again.state_dict()) == list(plain.state_dict())
    assert isinstance(again.get_submodule("1.0"), Block)


def test_norms_are_in_the_mode_of_the_first_pass() -> None:
    """Backward runs after the mode has changed back: of a batch of one, or of frozen statistics."""
    plain = model()
    again = copy.deepcopy(plain)
    recompute(again, find_blocks(again))
    gradients = []
    for module in (plain, again):
        norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
        for norm in norms:
            norm.eval()
        torch.manual_seed(1)
        loss = module(torch.ones(2, 3, 5, 5, dtype=torch.float64)).square().mean()
        for norm in norms:
            norm.train()
        loss.backward()
        assert all(norm.training and norm.num_batches_tracked == 0 for norm in norms)
        gradients.append([p.grad for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_modules_by_pattern() -> None:
    module = model()
    blocks = find_blocks(module)
    assert blocks == ["1.0", "1.1"]
    assert choose_blocks(module, blocks, "none") == []
    assert choose_blocks(module, blocks, ["1.*.layers", "1.1"]) == ["1.0.layers", "1.1"]
    with pytest.raises(UserError, match="'layer9' matches no"):
        choose_blocks(module, blocks, ["layer9"])
    with pytest.raises(UserError, match="the model has no blocks"):
        choose_blocks(nn.Linear(2, 2), [], "blocks")


@pytest.mark.skipif(not shutil.which("g++"), reason="the compiler for the CPU needs g++")
def test_compiled_blocks_compile_a_tail_once() -> None:
    plain = model()
    for block in (plain.get_submodule("1.0"), plain.get_submodule("1.1")):
        block.get_submodule("dropout").p = 0.0  # compiled code draws other masks
    compiled = copy.deepcopy(plain)
    names = find_blocks(compiled)
    recompute(compiled, names)
    compile_blocks(compiled, names, "default")
    torch._dynamo.reset()
    expected, found = passes(plain, 6), passes(compiled, 6)
    assert all(torch.allclose(a, b) for a, b in zip(expected, found, strict=True))
    assert list(compiled.state_dict()) == list(plain.state_dict())
    counters = torch._dynamo.utils.counters["stats"]
    full = counters["unique_graphs"]
    passes(compiled, 4)
    tail = counters["unique_graphs"]
    passes(compiled, 6, 4, 5, 3)
    assert counters["unique_graphs"] == tail <= 2 * full
