"""`paceline evaluate`: equal to the run's own evaluations, on any ranks, leaving the run as it is; what is refused."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline
from paceline.cli import main
from paceline.errors import ExitCode, UserError
from paceline.loop.setup import Objects
from paceline.records.folder import RunFolder
from paceline.records.reader import read
from tests.judging.runs import CLASSES, image_run, picture, train_here


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return image_run(tmp_path_factory.mktemp("judged"))


def recorded(run: RunFolder) -> list[dict[str, Any]]:
    return [r for r in read(run.records(0)) if r["kind"] == "eval"]


def digest(folder: Path) -> dict[str, str]:
    """Of every file of a run but its evaluations."""
    files = [p for p in folder.rglob("*") if p.is_file() and "evaluations" not in p.parts]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_an_evaluation_equals_the_runs_own_bit_for_bit(run: RunFolder) -> None:
    before, (first, last) = digest(run.path), recorded(run)
    final = paceline.evaluate(run.path)
    assert final.weights == "final"
    assert (final.loss, final.count) == (last["loss"], 15)
    assert {n: final.metrics[n] for n in last["metrics"]} == last["metrics"]
    assert paceline.evaluate(run.path, checkpoint="last").loss == last["loss"]
    assert paceline.evaluate(run.path, checkpoint="step-2").loss == first["loss"]
    best = first if first["best"] and not last["best"] else last
    assert paceline.evaluate(run.path, checkpoint="best").loss == best["loss"]
    path = run.checkpoints / "step-00000002"
    assert paceline.evaluate(path).loss == first["loss"]
    assert paceline.evaluate(run.weights).loss == last["loss"]
    assert digest(run.path) == before


def test_what_is_written(run: RunFolder, tmp_path: Path) -> None:
    found = paceline.evaluate(run.path, output=tmp_path / "here")
    assert found.folder == tmp_path / "here"
    assert found.confusion is not None
    assert found.confusion.sum() == found.count == 15
    written = json.loads((tmp_path / "here/evaluation.json").read_text())
    assert written["loss"] == found.loss
    assert written["metrics"]["f1"] == found.metrics["f1"]
    assert [row["name"] for row in written["per_class"]] == list(CLASSES)
    assert sum(row["samples"] for row in written["per_class"]) == 15
    assert 0 <= written["bounds"]["auc"] < 0.01
    assert sum(b["count"] for b in written["calibration"]) == 15
    with open(tmp_path / "here/confusion.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0][1:] == ["'=sum(A1)", "cat", "dog"]  # no spreadsheet calculates a class's name
    assert np.array_equal(np.array([r[1:] for r in rows[1:]], int), found.confusion)
    names = [paceline.evaluate(run.path, checkpoint="final").folder for _ in range(2)]
    assert [p is not None and p.parent == run.evaluations for p in names] == [True, True]
    assert names[0] != names[1]


def test_on_ranks_and_from_the_command_line(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = ["--set", "parallel.strategy=ddp", "--ranks", "2"]
    assert main(["evaluate", str(run.path), "--json", *ranks, "-o", str(tmp_path / "two")]) == 0
    two = json.loads(capsys.readouterr().out)
    one = paceline.evaluate(run.path, output=tmp_path / "one")
    assert (two["ranks"], one.ranks) == (2, 1)
    assert two["loss"] == pytest.approx(one.loss, rel=1e-12)
    assert two["metrics"] == pytest.approx(one.metrics, rel=1e-12)
    assert main(["evaluate", str(run.path), "--ranks", "1", "-o", str(tmp_path / "table")]) == 0
    table = capsys.readouterr().out
    assert "final on 15 samples of imagefolder:" in table
    assert "=sum(A1)        5" in table
    assert "written to " in table


def test_other_data_with_the_classes_of_the_run(run: RunFolder, tmp_path: Path) -> None:
    """Without the training data, which may be gone; classes that have no images stay classes."""
    for number in range(4):
        picture(tmp_path / "new/dog" / f"{number}.png", number)
    photos = run.path.parent / "photos"
    photos.rename(tmp_path / "gone")
    try:
        found = paceline.evaluate(run.path, data=f"imagefolder:{tmp_path / 'new'}")
        assert [row["samples"] for row in found.per_class] == [0, 0, 4]
        picture(tmp_path / "new/horse/1.png", 1)
        with pytest.raises(UserError, match="horse is in the evaluation set and not in the"):
            paceline.evaluate(run.path, data=f"imagefolder:{tmp_path / 'new'}")
    finally:
        (tmp_path / "gone").rename(photos)


def test_weights_outside_of_a_run(run: RunFolder, tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    shutil.copy(run.weights, weights)
    found = paceline.evaluate(weights, config=run.config)
    assert found.loss == recorded(run)[-1]["loss"]
    assert found.folder is None
    with pytest.raises(UserError, match="lies in no run folder"):
        paceline.evaluate(weights)
    with pytest.raises(UserError, match="the weights do not fit the model"):
        paceline.evaluate(run.path, config={"model.width": 16})


def test_a_run_given_objects_is_evaluated_with_them(tmp_path: Path) -> None:
    x = torch.randn(40, 3, dtype=torch.float64)
    data = TensorDataset(x, x @ torch.ones(3, 2, dtype=torch.float64))
    objects = Objects(model=lambda: nn.Linear(3, 2), data=data, eval_data=data)
    run = train_here(tmp_path / "r", {}, objects)
    with pytest.raises(UserError, match="was given model= and eval_data= from Python") as refused:
        paceline.evaluate(run.path)
    assert "paceline.evaluate(run, model=…, eval_data=…)" in refused.value.hint.replace(
        "data=…, ", ""
    )
    with pytest.raises(UserError, match="was given model= from Python"):
        paceline.predict(run.path, data=data)
    model = nn.Linear(3, 2)
    found = paceline.evaluate(run.path, model=model, data=data)
    assert found.task == "regression"
    assert found.loss == recorded(run)[-1]["loss"]
    assert set(found.metrics) == {"mae", "rmse", "r2"}
    values = paceline.predict(run.path, data=data, model=model).values
    assert np.allclose(values, model(x).detach().numpy(), rtol=1e-12)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["evaluate", *arguments]) == ExitCode.USER
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert "\n  hint: " in told
    assert "Traceback" not in told
    return told


def test_bad_input(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    name = str(copy)
    assert "does not exist" in refused(capsys, str(tmp_path / "nowhere"))
    assert "is neither a run folder" in refused(capsys, str(tmp_path))
    assert "has no checkpoint 'bset'" in refused(capsys, name, "--checkpoint", "bset")
    assert "did you mean 'best'?" in refused(capsys, name, "--checkpoint", "bset")
    assert "no checkpoint 'step-7'" in refused(capsys, name, "--checkpoint", "step-7")
    assert "already names weights" in refused(
        capsys, f"{name}/model.safetensors", "--checkpoint", "last"
    )
    told = refused(capsys, name, "--set", 'train.metrics=["acuracy"]')
    assert "there is no metric 'acuracy'" in told
    assert "did you mean 'accuracy'?" in told
    told = refused(capsys, name, "--set", 'train.metrics=["r2"]')
    assert "'r2' is a metric of regression, and this is classification" in told
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(capsys, name, "-o", str(tmp_path / "file" / "x"))

    newest = copy / "checkpoints/step-00000004"
    tensors = next(newest.glob("*.safetensors"))
    spoiled = bytearray(tensors.read_bytes())
    spoiled[len(spoiled) // 2] ^= 1
    tensors.write_bytes(spoiled)
    assert tensors.name in refused(capsys, name, "--checkpoint", "step-4")
    assert main(["evaluate", name, "--checkpoint", "last"]) == ExitCode.OK
    said = capsys.readouterr()
    assert "passed over: " in said.err
    assert tensors.name in said.err
    assert "step-00000002 on 15 samples" in said.out

    shutil.rmtree(copy / "checkpoints")
    assert "there is no checkpoint in" in refused(capsys, name, "--checkpoint", "last")
    (copy / "model.safetensors").unlink()
    assert "has no final weights" in refused(capsys, name, "--checkpoint", "final")
    (copy / "model.json").write_text("{}")
    assert "model.json cannot be read" in refused(capsys, name)
    (copy / "model.json").unlink()
    assert "model.json is missing" in refused(capsys, name)
