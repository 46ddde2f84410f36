"""`paceline predict`: files become a table; what cannot be read is a row of it; hostile names stay text."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import paceline
from paceline.cli import main
from paceline.config.load import load_config
from paceline.data.decode import View
from paceline.data.sources.files import ImageFiles, index_of
from paceline.errors import ExitCode, UserError
from paceline.judging.cells import cell
from paceline.judging.predictions import Predictions
from paceline.judging.run import find_subject
from paceline.loop.judge import Job, judge
from paceline.loop.setup import Objects
from paceline.loop.stopping import StopRequest
from paceline.models.small_resnet import SmallResNet
from paceline.records.folder import RunFolder
from tests.judging.runs import CLASSES, image_run, picture, train_here
from tests.ranks import run_ranks

HOSTILE = [
    "=1+2.png",
    "-b.png",
    "@c.PNG",
    "d,e\"'.png",
    "new\nline.png",
    "z/ö.png",
    "a/deep/er/x.png",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return image_run(tmp_path_factory.mktemp("judged"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pictures with hostile names, two files that are none, one that is no picture by its name."""
    for number, name in enumerate(HOSTILE):
        picture(tmp_path / "in" / name, number, (16 + number, 20))
    (tmp_path / "in/broken.jpg").write_bytes(b"\xff\xd8\xff no")
    (tmp_path / "in/empty.png").touch()
    (tmp_path / "in/notes.txt").touch()
    (tmp_path / "in/.hidden.png").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "in"


def table(path: Path) -> list[list[str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_a_folder_becomes_a_table(
    run: RunFolder, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["predict", str(run.path), "in", "-o", "out.csv", "--ranks", "1"]
    assert main(command) == ExitCode.OK
    said = capsys.readouterr()
    assert said.out == ""
    assert "2 of 9 files cannot be read; out.csv says why" in said.err
    assert "1 files are no images and are ignored" in said.err
    header, *rows = table(Path("out.csv"))
    assert header == ["path", "class", "probability", "p(=sum(A1))", "p(cat)", "p(dog)", "error"]
    names = [
        f"in/{name}".replace("\n", "\\n") for name in sorted([*HOSTILE, "broken.jpg", "empty.png"])
    ]
    assert [row[0] for row in rows] == names
    by_name = {row[0]: row for row in rows}
    assert by_name["in/empty.png"][1:] == ["", "", "", "", "", "the file is empty"]
    assert by_name["in/broken.jpg"][-1] != ""
    for row in rows:
        assert len(row) == len(header)
        if not row[-1]:
            values = [float(value) for value in row[3:6]]
            assert sum(values) == pytest.approx(1, abs=1e-5)
            assert row[1] == cell(CLASSES[int(np.argmax(values))])
            assert float(row[2]) == max(values)
    assert main([*command[:-2], "--ranks", "1", "--top", "2"]) == ExitCode.OK
    header, *rows = table(Path("out.csv"))
    assert header == ["path", "class_1", "probability_1", "class_2", "probability_2", "error"]
    assert all(row[-1] or float(row[2]) >= float(row[4]) for row in rows)


def test_the_numbers_are_those_of_the_model_as_evaluations_see_it(
    run: RunFolder, folder: Path
) -> None:
    paths = sorted(str(folder / name) for name in HOSTILE)
    found = paceline.predict(run.path, paths)
    source = ImageFiles(index_of(paths, np.zeros(len(paths), int)), View(16), name="test")
    images = torch.stack([source.load(i)["input"] for i in range(len(paths))])
    n = source.normalization
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (n.mean, n.std))
    model = SmallResNet(3, 3, width=8).double().eval()
    model.load_state_dict(load_file(run.weights))
    with torch.no_grad():
        expected = torch.softmax(model((images.double() / 255 - mean) / std), 1)
    assert np.allclose(found.values, expected.numpy(), atol=1e-6)
    assert found.classes == [CLASSES[i] for i in expected.argmax(1).tolist()]
    assert found.errors == {}


def judge_rank(job: Job) -> None:
    judge(job, StopRequest())


def test_ranks_share_the_files_in_order(run: RunFolder, folder: Path, tmp_path: Path) -> None:
    from paceline.judging.run import _images, _job

    config = load_config(flags={"parallel.strategy": "ddp", "parallel.ranks": 2})
    subject = find_subject(run.path, "", config)
    assert subject.card is not None
    paths = sorted(
        os.fsencode(p) for p in folder.rglob("*") if p.suffix.lower() in (".png", ".jpg")
    )
    source = _images(paths, subject.config, subject.card)
    (tmp_path / "out").mkdir()
    run_ranks(judge_rank, 2, _job(subject, Objects(), tmp_path / "out", source=source))
    names = [str(path) for path in paths]
    two = Predictions.read(
        tmp_path / "out", names=names, task=subject.card.task, class_names=subject.card.names()
    )
    one = paceline.predict(run.path, [os.fsdecode(path) for path in paths])
    assert two.errors == one.errors
    assert np.allclose(two.values, one.values, equal_nan=True, atol=1e-6)


def test_numbers_and_labels(tmp_path: Path) -> None:
    x = torch.randn(24, 4, dtype=torch.float64)
    numbers = TensorDataset(x, x.sum(1))
    model = nn.Linear(4, 1)
    run = train_here(tmp_path / "r", {}, Objects(model=model, data=numbers, eval_data=numbers))
    found = paceline.predict(run.path, data=numbers, model=model, output=tmp_path / "out.csv")
    assert np.allclose(found.values, model(x).detach().numpy(), rtol=1e-12)
    header, *rows = table(tmp_path / "out.csv")
    assert header == ["path", "value", "error"]
    assert float(rows[3][1]) == pytest.approx(float(found.values[3, 0]), rel=1e-6)

    labels = TensorDataset(x, (x[:, :2] > 0).double())
    labels.num_classes = 2  # type: ignore[attr-defined]
    model = nn.Linear(4, 2)
    flags = {"train.metrics": ["map", "subset_accuracy"]}
    run = train_here(tmp_path / "m", flags, Objects(model=model, data=labels, eval_data=labels))
    found = paceline.predict(run.path, data=labels, model=model, output=tmp_path / "labels.csv")
    assert np.allclose(found.values, torch.sigmoid(model(x)).detach().numpy(), atol=1e-6)
    header, *rows = table(tmp_path / "labels.csv")
    assert header == ["path", "labels", "p(0)", "p(1)", "error"]
    assert rows[0][1] == ";".join(str(i) for i in range(2) if found.values[0, i] > 0.5)
    evaluated = paceline.evaluate(run.path, data=labels, model=model)
    assert {"map", "f1", "f1_micro", "auc", "subset_accuracy"} <= set(evaluated.metrics)
    assert "map" in evaluated.bounds
    picture(tmp_path / "p.png", 1)
    with pytest.raises(UserError, match="so files cannot be made into them"):
        paceline.predict(run.path, tmp_path / "p.png", model=model)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["predict", *arguments]) == ExitCode.USER
    told = capsys.readouterr().err
    assert "error: " in told
    assert "\n  hint: " in told
    assert "Traceback" not in told
    return told


def test_bad_input(
    run: RunFolder, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(run.path)
    (tmp_path / "nothing").mkdir()
    assert "there are no images in nothing" in refused(capsys, name, "nothing")
    assert "missing does not exist" in refused(capsys, name, "missing")
    assert "nowhere/out.csv cannot be written" in refused(
        capsys, name, "in", "-o", "nowhere/out.csv"
    )
    assert "it is a folder" in refused(capsys, name, "in", "-o", "nothing")
    assert "--top -1" in refused(capsys, name, "in", "--top=-1")
    told = refused(capsys, name, "in/empty.png", "in/broken.jpg", "-o", "bad.csv", "--ranks", "1")
    assert "none of the 2 files can be read; bad.csv says why" in told
    assert len(table(Path("bad.csv"))) == 3
    assert not list(tmp_path.glob(".*.partial"))


def test_cells() -> None:
    assert cell("=1") == "'=1"
    assert [cell(text)[0] for text in ("+1", "-1", "@x", "＝1")] == ["'"] * 4
    assert cell("a\tb\x1b[0m") == "a\\tb\\x1b[0m"
    assert cell("1-2=x") == "1-2=x"
