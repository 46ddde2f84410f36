"""Models of torchvision and timm train on two ranks, are saved, resumed and evaluated.

A third of them, to stay within the time of `make test`; with PACELINE_ALL_MODELS=1 all 60 (two and a half minutes).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.models.zoo import TIMM, TORCHVISION, Case, train_all
from tests.ranks import run_ranks


@pytest.mark.slow
@pytest.mark.parametrize("cases", [TORCHVISION, TIMM], ids=["torchvision", "timm"])
def test_models_of_many_families(tmp_path: Path, cases: list[Case]) -> None:
    if cases is TIMM:
        pytest.importorskip("timm")
    assert len({case.name for case in cases}) >= 30
    chosen = cases if os.environ.get("PACELINE_ALL_MODELS") == "1" else cases[::3]
    run_ranks(train_all, 2, tmp_path, chosen, timeout_s=280)
