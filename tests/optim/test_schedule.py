"""The learning rate: linear scaling, warm-up, cosine and steps."""

from __future__ import annotations

import pytest

from paceline.config.schema import OptimConfig
from paceline.optim.schedule import Schedule


def schedule(batch: int = 512, total: int = 100, **settings: object) -> Schedule:
    return Schedule(
        OptimConfig(base_lr=0.1, **settings), batch, steps_per_epoch=10, total_steps=total
    )  # type: ignore[arg-type]


def test_the_rate_scales_linearly_with_the_global_batch() -> None:
    assert schedule(batch=512).peak == pytest.approx(0.2)
    assert schedule(batch=128).peak == pytest.approx(0.05)
    assert schedule(batch=512, lr_scaling="none").peak == pytest.approx(0.1)


def test_warm_up_rises_to_the_peak_and_the_cosine_ends_at_min_lr() -> None:
    s = schedule(warmup_epochs=1.0, min_lr=0.01)
    assert [s.learning_rate(i) for i in (0, 4, 9)] == pytest.approx([0.02, 0.1, 0.2])
    assert s.learning_rate(10) == pytest.approx(0.2)
    assert s.learning_rate(55) == pytest.approx((0.2 + 0.01) / 2)
    assert s.learning_rate(100) == pytest.approx(0.01)


def test_the_step_schedule_drops_by_epochs() -> None:
    s = schedule(total=900, schedule="step", step_epochs=30, warmup_epochs=0.0)
    assert [s.learning_rate(i) for i in (0, 299, 300, 600)] == pytest.approx(
        [0.2, 0.2, 0.02, 0.002]
    )


def test_a_warm_up_longer_than_the_run_is_the_run() -> None:
    s = schedule(total=5, warmup_epochs=5.0)
    assert [s.learning_rate(i) for i in range(5)] == pytest.approx([0.04, 0.08, 0.12, 0.16, 0.2])
