"""The loss scale, and fp32 first-step gradients under every precision."""

from __future__ import annotations

import pytest
import torch

from paceline.config.schema import PrecisionConfig
from paceline.parallel import precision
from paceline.parallel.precision import LossScale, autocast, parameter_dtype


@pytest.mark.parametrize(("has_bf16", "chosen"), [(True, "bf16"), (False, "fp32")])
def test_auto_takes_bf16_where_the_processor_has_it(
    has_bf16: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: has_bf16)
    cpu = torch.device("cpu")
    config = precision.choose_precision(PrecisionConfig(dtype="auto"), cpu)
    assert config.dtype == chosen
    assert not precision.remarks(config, cpu)
    emulated = precision.remarks(PrecisionConfig(dtype="bf16"), cpu)
    assert bool(emulated) != has_bf16


def scaled(initial: float = 8.0, interval: int = 3) -> LossScale:
    return LossScale(initial, interval, torch.device("cpu"))


def test_the_loss_scale_halves_after_an_infinite_step_and_doubles_after_enough_finite_ones() -> (
    None
):
    scale, seen = scaled(), []
    for finite in (True, False, True, True, True, True):
        scale.update(torch.tensor(finite))
        seen.append(float(scale.scale))
    assert seen == [8, 4, 4, 4, 8, 8]


def test_the_loss_scale_stays_within_what_fp32_sums_can_tell_apart() -> None:
    scale = scaled(initial=1.0)
    scale.update(torch.tensor(False))
    assert float(scale.scale) == 1.0
    scale = scaled(initial=2.0**24, interval=1)
    scale.update(torch.tensor(True))
    assert float(scale.scale) == 2.0**24


def test_the_loss_scale_goes_on_where_it_was_saved() -> None:
    first = scaled()
    for finite in (True, True):
        first.update(torch.tensor(finite))
    second = scaled(initial=1.0)
    second.load_tensors({name: value.clone() for name, value in first.tensors().items()})
    second.update(torch.tensor(True))
    assert float(second.scale) == 16.0


def test_only_fp64_changes_the_weights() -> None:
    kinds = {
        name: parameter_dtype(PrecisionConfig(dtype=name))
        for name in ("fp32", "tf32", "bf16", "fp16", "fp64")
    }
    assert kinds.pop("fp64") == torch.float64
    assert set(kinds.values()) == {torch.float32}


def test_bf16_computes_in_bf16() -> None:
    a = torch.randn(4, 4)
    with autocast(PrecisionConfig(dtype="bf16"), torch.device("cpu")):
        assert (a @ a).dtype == torch.bfloat16
