"""How metrics are shown: a few columns while a run trains, classes and confusions of an evaluation."""

from __future__ import annotations

from typing import Any

from paceline.ui import text
from paceline.ui.evaluation import evaluation_lines
from paceline.ui.table import EpochTable, plain_row

EPOCH = {
    "epoch": 1,
    "epochs": 20,
    "watched": "f1",
    "train_loss": 0.5,
    "train_metrics": {"accuracy": 0.25},
    "eval_loss": 0.6,
    "eval_metrics": {"accuracy": 0.2, "f1": 0.3, "f1_weighted": 0.4, "top5": 0.9, "ece": 0.1},
    "lr": 0.1,
    "images_per_s": 100.0,
    "seconds": 2.0,
}


def test_an_epoch_shows_the_watched_metric_and_two_more() -> None:
    header, row = (line.plain for line in EpochTable().rows(EPOCH, best=False, width=200))
    assert "top5" not in header
    assert header.index("eval f1") < header.index("eval acc") < header.index("eval f1_weighted")
    assert row.split()[:6] == ["1/20", "0.5000", "0.6000", "0.3000", "20.00%", "0.4000"]
    narrow = EpochTable().rows(EPOCH, best=False, width=60)[0].plain
    assert "eval f1" in narrow
    assert "acc" not in narrow
    assert "eval f1 0.3000" in plain_row(EPOCH, best=False)


def test_shares_are_percent() -> None:
    assert text.metric("top5", 0.5) == text.metric("best_top5", 0.5) == "50.00%"
    assert text.metric("topology", 0.5) == "0.5000"


def evaluation(num_classes: int) -> dict[str, Any]:
    classes = [
        {
            "name": f"class {c}",
            "samples": c,
            "recall": c / 50,
            "precision": 0.5,
            "f1": c / 50,
            "auc": None,
        }
        for c in range(num_classes)
    ]
    classes[1]["name"] = "\x1b[2J<b>"
    return {
        "weights": "final",
        "data": "imagefolder:\x1b[31mx",
        "ranks": 2,
        "count": 1234,
        "seconds": 3.21,
        "loss": 0.5,
        "metrics": {"accuracy": 0.75, "auc": 0.9, "unknown": None},
        "bounds": {"auc": 1.2e-5},
        "per_class": classes,
    }


def test_the_table_of_few_classes_and_the_worst_of_many() -> None:
    pairs = [{"true": "class 3", "predicted": "\x1b[2J<b>", "count": 7, "share": 0.5}] * 20
    few = evaluation_lines(evaluation(30), pairs)
    assert few[0] == "final on 1,234 samples of imagefolder:x: 2 ranks, 3.2 s"
    assert "  accuracy  75.00%" in few
    assert "  auc       0.9000 ± 1e-05" in few
    assert "  unknown   not a number" in few
    assert (
        sum(line.startswith("  class ") for line in few) == 30 + 3
    )  # a header and 3 pairs, less one name
    assert "  class 3 taken for <b>: 7 (50.0%)" in few
    many = evaluation_lines(evaluation(31), pairs)
    start = many.index("the 10 worst of 31 classes:")
    assert many[start + 2].split() == ["<b>", "1", "0.0200", "0.5000", "0.0200"]
    assert many.count("  class 3 taken for <b>: 7 (50.0%)") == 10
    assert not any("\x1b" in line for line in [*few, *many])
