"""Evaluations of a run: metrics by name are exact over ranks, what is not a number is said once and never the best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.loop.evaluate import watched_metric
from paceline.loop.setup import Objects
from paceline.loop.stopping import StopRequest
from paceline.loop.train import run
from paceline.models.measure import Metric
from paceline.models.registry import make_spec
from paceline.records.folder import RunFolder
from paceline.records.reader import Record, read
from tests.loop.runs import Net, Points, config_of, train_rank
from tests.ranks import run_ranks

NAMES = ["accuracy", "f1", "auc", "ece", "top2"]


def evaluations(folder: Path) -> list[Record]:
    return [r for r in read(RunFolder(folder).records(0)) if r["kind"] == "eval"]


def test_metrics_by_name_are_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    sets = {"train.metrics": NAMES, "train.metric": "f1"}
    plain = {key.replace(".", "__"): value for key, value in sets.items()}
    train_rank(tmp_path / "alone", plain | {"parallel__strategy": "single"})
    run_ranks(train_rank, 3, tmp_path / "three", plain)
    alone, three = evaluations(tmp_path / "alone"), evaluations(tmp_path / "three")
    assert set(alone[0]["metrics"]) == {*NAMES, "f1_weighted"}
    for one, other in zip(alone, three, strict=True):
        assert one["count"] == other["count"] == 13
        assert other["metrics"] == pytest.approx(one["metrics"], abs=1e-9)
    result = json.loads((tmp_path / "alone/result.json").read_text())
    assert result["metrics"]["best_f1"] == max(e["metrics"]["f1"] for e in alone)
    steps = [r for r in read(RunFolder(tmp_path / "alone").records(0)) if r["kind"] == "step"]
    assert list(steps[0]["metrics"]) == ["accuracy"]  # a step measures only what is cheap


def squares(output: Tensor, batch: Batch) -> dict[str, Tensor]:
    return {"squares": (output.square().sum(1) * batch.weights).sum(), "count": batch.weights.sum()}


def train_with(folder: Path, metrics: dict[str, Any], eval_num: int = 13, **sets: Any) -> None:
    run_folder = RunFolder(folder)
    run_folder.create()
    objects = Objects(model=Net, data=Points(), eval_data=Points(num=eval_num), metrics=metrics)
    run(run_folder, config_of(**sets), stop=StopRequest(), objects=objects)


def test_a_metric_of_ones_own_and_a_rank_without_samples(tmp_path: Path) -> None:
    metrics = {
        "energy": Metric(sums=squares, compute=lambda s: (s["squares"] / s["count"]) ** 0.5),
        "twice": lambda output, target: torch.full((len(target),), 2.0),
    }
    train_with(tmp_path / "alone", metrics, eval_num=1, parallel__strategy="single")
    run_ranks(train_two, 2, tmp_path / "two")
    (one, two) = (evaluations(tmp_path / name)[-1]["metrics"] for name in ("alone", "two"))
    assert one["energy"] == pytest.approx(two["energy"], rel=1e-9)
    assert one["twice"] == two["twice"] == 2


def train_two(folder: Path) -> None:
    metrics = {
        "energy": Metric(sums=squares, compute=lambda s: (s["squares"] / s["count"]) ** 0.5),
        "twice": lambda output, target: torch.full((len(target),), 2.0),
    }
    train_with(folder, metrics, eval_num=1)


def test_what_is_not_a_number_is_said_once_and_never_the_best(tmp_path: Path) -> None:
    unknown = Metric(sums=squares, compute=lambda sums: float("nan"))
    train_with(tmp_path, {"unknown": unknown}, train__metric="unknown", parallel__strategy="single")
    records = read(RunFolder(tmp_path).records(0))
    warnings = [r["text"] for r in records if r["kind"] == "warning"]
    assert warnings == [
        "unknown is nan in the evaluation of epoch 1; what is not finite is never the best"
    ]
    assert [e["best"] for e in evaluations(tmp_path)] == [False, False]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["metrics"]["unknown"] is None
    assert "best_unknown" not in result["metrics"]


def test_what_is_watched_and_which_way() -> None:
    def watched(**sets: Any) -> tuple[str, bool]:
        config = config_of(**sets)
        spec = make_spec(config, channels=1, num_classes=3)
        found = watched_metric(config.train, spec)
        return found.name, found.smaller

    assert watched() == ("accuracy", False)
    assert watched(train__metrics=["ece"], train__metric="ece") == ("ece", True)
    assert watched(train__metrics=["f1"], train__metric="f1_weighted") == ("f1_weighted", False)
    assert watched(train__metric="loss") == ("loss", True)
    with pytest.raises(UserError, match="'f1_weigthed' is not measured") as refused:
        watched(train__metrics=["f1"], train__metric="f1_weigthed")
    assert "did you mean 'f1_weighted'" in refused.value.hint
    mine = {"accuracy": lambda output, target: output[:, 0]}
    with pytest.raises(UserError, match="two metrics are called 'accuracy'"):
        make_spec(config_of(), channels=1, num_classes=3, metrics=mine)
