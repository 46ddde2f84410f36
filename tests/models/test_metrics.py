"""Every metric against scikit-learn, on random data with ties, missing classes, weights 0 and any split."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.models.metrics import (
    Metric,
    auto_names,
    compute_metrics,
    known,
    make_metrics,
    measure_sums,
    report_metrics,
)
from paceline.models.metrics.classification import odds

N = 300


def batch(target: Tensor, weights: Tensor) -> Batch:
    return Batch({"target": target}, torch.arange(len(target)), weights, int(weights.sum()))


def measured(
    metrics: Sequence[Metric], output: Tensor, target: Tensor, weights: Tensor, cuts: Sequence[int]
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """The numbers over batches cut at `cuts`, added in another order than they come."""
    bounds = [0, *cuts, len(target)]
    parts = [
        measure_sums(metrics, output[a:b], batch(target[a:b], weights[a:b]))
        for a, b in itertools.pairwise(bounds)
    ]
    total = {n: sum(p[n] for p in reversed(parts)) for n in parts[0]}
    return compute_metrics(metrics, {n: np.asarray(v) for n, v in total.items()})


def weights_with_zeros(generator: torch.Generator) -> Tensor:
    return (torch.rand(N, generator=generator) > 0.1).float()


def classes(seed: int, num: int, missing: tuple[int, ...], ties: bool) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, num, (N,), generator=generator)
    for label in missing:
        target[target == label] = (label + 1) % num
    logits = torch.randn(N, num, generator=generator) * 2
    logits[torch.arange(N), target] += 1.5
    if ties:
        logits = logits.round()
    weights = weights_with_zeros(generator)
    logits[weights == 0] = 77
    return logits, target, weights


@pytest.mark.parametrize(
    ("seed", "num", "missing", "ties"),
    [(0, 2, (), False), (1, 7, (), True), (2, 12, (0, 5), False), (3, 30, (29,), True)],
)
def test_metrics_of_classes(seed: int, num: int, missing: tuple[int, ...], ties: bool) -> None:
    logits, target, weights = classes(seed, num, missing, ties)
    metrics = report_metrics("classification", num)
    found, arrays = measured(metrics, logits, target, weights, [7, 8, 200])
    again, _ = measured(metrics, logits, target, weights, [])
    assert found == pytest.approx(again, abs=1e-12)
    real = weights > 0
    y, scores = target[real].numpy(), logits[real]
    called = scores.argmax(1).numpy()
    probabilities = torch.softmax(scores.double(), 1).numpy()
    expected = {
        "accuracy": sk.accuracy_score(y, called),
        "precision": sk.precision_score(y, called, average="macro", zero_division=0),
        "precision_weighted": sk.precision_score(y, called, average="weighted", zero_division=0),
        "recall": sk.recall_score(y, called, average="macro", zero_division=0),
        "recall_weighted": sk.recall_score(y, called, average="weighted", zero_division=0),
        "f1": sk.f1_score(y, called, average="macro", zero_division=0),
        "f1_weighted": sk.f1_score(y, called, average="weighted", zero_division=0),
        "ece": calibration_error(probabilities.max(1), called == y),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # called classes that are not there
        expected["balanced_accuracy"] = sk.balanced_accuracy_score(y, called)
    if num > 5 and not ties:
        expected["top5"] = sk.top_k_accuracy_score(y, probabilities, k=5, labels=range(num))
    assert {n: found[n] for n in expected} == pytest.approx(expected, abs=1e-12)
    assert np.array_equal(arrays["confusion"], sk.confusion_matrix(y, called, labels=range(num)))
    lists = sk.precision_recall_fscore_support(y, called, labels=range(num), zero_division=0)
    for name, values in zip(("precision", "recall", "f1", "count"), lists, strict=True):
        assert np.allclose(arrays[f"class_{name}"], values, atol=1e-12)
    present = [c for c in range(num) if c not in missing]
    own = odds(scores).numpy()
    areas = [sk.roc_auc_score(y == c, own[:, c]) for c in present]
    assert abs(found["auc"] - np.mean(areas)) <= arrays["auc_bound"] + 1e-12
    assert arrays["auc_bound"] < (1e-3 if not ties else 0.1)
    assert all(math.isnan(arrays["class_auc"][c]) for c in missing)
    if ties:  # rounded scores tie in scikit-learn too, at least within the bins
        assert np.allclose(arrays["class_auc"][present], areas, atol=2e-3)


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    place = np.minimum((confidence * 15).astype(int), 14)
    return sum(
        abs(right[place == b].mean() - confidence[place == b].mean()) * (place == b).mean()
        for b in range(15)
        if (place == b).any()
    )


def test_odds_order_as_probabilities_do_where_those_have_rounded_to_1() -> None:
    logits = torch.tensor([[50.0, 0, 0], [60.0, 0, 0], [0.0, 0, 1]])
    found = odds(logits)
    assert found[0, 0] < found[1, 0]
    p = torch.softmax(logits.double(), 1)
    assert torch.allclose(torch.sigmoid(found), p, atol=1e-15)


@pytest.mark.parametrize(("labels", "ties"), [(1, False), (6, False), (6, True)])
def test_metrics_of_labels(labels: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    target = (torch.rand(N, labels, generator=generator) < 0.3).float()
    if labels > 1:
        target[:, -1] = 0  # a label that nobody has
    logits = torch.randn(N, labels, generator=generator) + target - 0.7
    logits = (logits * 3).round() / 3 if ties else logits
    weights = weights_with_zeros(generator)
    found, arrays = measured(
        report_metrics("multi-label", labels), logits, target, weights, [1, 99]
    )
    real = weights > 0
    y, scores = target[real].numpy(), logits[real].numpy().astype(np.float64)
    called = (scores > 0).astype(float)
    expected: dict[str, Any] = {
        "label_accuracy": 1 - sk.hamming_loss(y, called),
        "subset_accuracy": sk.accuracy_score(y, called),
        "ece": calibration_error(1 / (1 + np.exp(-scores.ravel())), y.ravel().astype(float)),
    }
    kinds = {"": "macro", "_micro": "micro", "_weighted": "weighted"}
    scorers = {"precision": sk.precision_score, "recall": sk.recall_score, "f1": sk.f1_score}
    for name, score in scorers.items():
        for kind, average in kinds.items():
            if labels > 1:
                expected[name + kind] = score(y, called, average=average, zero_division=0)
            elif kind == "":
                expected[name] = score(y[:, 0], called[:, 0])
    assert {n: found[n] for n in expected} == pytest.approx(expected, abs=1e-12)
    some = [c for c in range(labels) if y[:, c].any()]
    for name, score in (("auc", sk.roc_auc_score), ("map", sk.average_precision_score)):
        values = np.mean([score(y[:, c], scores[:, c]) for c in some])
        bound = arrays[f"{name}_bound"]
        assert abs(found[name] - values) <= bound + 1e-12
        assert ties or bound < 1e-3
        if ties:
            assert found[name] == pytest.approx(values, abs=1e-12)
    assert list(np.isnan(arrays["class_average_precision"])) == [
        c not in some for c in range(labels)
    ]


@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_metrics_of_numbers(offset: float) -> None:
    generator = torch.Generator().manual_seed(5)
    target = torch.randn(N, 3, dtype=torch.float64, generator=generator) + offset
    target[:, 2] = offset + 1  # constant
    output = target + torch.randn(N, 3, dtype=torch.float64, generator=generator) / 3
    weights = weights_with_zeros(generator)
    output[weights == 0] = math.nan
    metrics = make_metrics(["mae", "rmse", "r2"], "regression", origin=target[0])
    found, _ = measured(metrics, output, target, weights, [150])
    y, called = target[weights > 0].numpy(), output[weights > 0].numpy()
    expected = {
        "mae": sk.mean_absolute_error(y, called),
        "rmse": np.sqrt(((y - called) ** 2).mean(0)).mean(),
        "r2": sk.r2_score(y, called),
    }
    assert found == pytest.approx(expected, rel=1e-9)
    exact, _ = measured(metrics, target, target, torch.ones(N), [])
    assert exact == {"mae": 0, "rmse": 0, "r2": 1}


def test_what_cannot_be_computed_is_not_a_number() -> None:
    target, ones = torch.zeros(4, dtype=torch.int64), torch.ones(4)
    found, _ = measured(
        make_metrics(["auc"], "classification"), torch.zeros(4, 1), target, ones, []
    )
    assert math.isnan(found["auc"])  # there is no negative sample
    bad = torch.randn(N, 3)
    bad[5, 1] = math.nan
    names = ["auc", "ece"]
    target = torch.arange(N) % 3
    found, _ = measured(make_metrics(names, "classification"), bad, target, torch.ones(N), [])
    assert all(math.isnan(found[n]) for n in names)


def test_names() -> None:
    assert auto_names("classification", 10) == ["accuracy"]
    assert auto_names("classification", 100) == ["accuracy", "top5"]
    for task in ("classification", "multi-label", "regression"):
        for name in auto_names(task, 100):
            assert name in known(task) or name == "top5"
        numbers = [n for metric in report_metrics(task, 10) for n in metric.numbers]
        assert len(set(numbers)) == len(numbers)
    with pytest.raises(UserError, match="did you mean 'accuracy'"):
        make_metrics(["acuracy"], "classification")
    with pytest.raises(
        UserError, match=r"'r2' is a metric of regression, and this is classification"
    ):
        make_metrics(["r2"], "classification")
    with pytest.raises(UserError, match=r"'top5' is a metric of classification"):
        make_metrics(["top5"], "regression")
    with pytest.raises(UserError, match=r"metrics of classes need an output of \(n, classes\)"):
        measured(
            make_metrics(["f1"], "classification"), torch.ones(3), torch.ones(3), torch.ones(3), []
        )


def test_a_metric_of_ones_own_that_gives_no_number() -> None:
    own = Metric(
        numbers=["mine"],
        sums=lambda output, batch: {"total": (output[:, 0] * batch.weights).sum()},
        compute=lambda sums: float(sums["total"]) * 2,
    )
    output = torch.ones(4, 1)
    assert measured([own], output, torch.zeros(4), torch.ones(4), [2])[0] == {"mine": 8}
    wrong = Metric(numbers=["mine"], sums=own.sums, compute=lambda sums: {"other": 1.0})
    with pytest.raises(UserError, match="'mine' was computed to nothing"):
        measured([wrong], output, torch.zeros(4), torch.ones(4), [2])
