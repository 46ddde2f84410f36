"""A small GPT on real text: the core knows nothing of images."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from paceline.data.text_to_tokens import encode_files, get_tokenizer, write_tokens
from paceline.errors import UserError
from paceline.loop.stopping import StopRequest
from paceline.loop.train import run
from paceline.models.gpt import GPT
from paceline.records.folder import RunFolder
from paceline.ui.table import plain_row
from tests.loop.runs import config_of, largest_difference, weights
from tests.ranks import run_ranks

LENGTH = 32


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bytes of the descriptions of data sets that scikit-learn ships; not a whole number of batches."""
    spec = importlib.util.find_spec("sklearn.datasets.descr")
    assert spec is not None and spec.submodule_search_locations
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.rst"))[:4]
    path = tmp_path_factory.mktemp("tokens") / "text.bin"
    encode, vocabulary = get_tokenizer("bytes")
    write_tokens(path, encode_files(files, encode), vocabulary=vocabulary)
    return path


def train(folder: Path, text: Path, sets: dict[str, Any]) -> str:
    run_folder = RunFolder(folder)
    run_folder.create()
    config = config_of(
        **{
            "data__source": f"tokens:{text}",
            "data__sequence_length": LENGTH,
            "model__name": "gpt",
            "model__options": {"depth": 2, "width": 32, "heads": 2},
            "optim__name": "adamw",
            "optim__lr_scaling": "none",
            "optim__base_lr": 0.01,
            **sets,
        }
    )
    return run(run_folder, config, stop=StopRequest())


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "records" / "rank-0.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["kind"] == kind]


def test_the_loss_drops_on_real_text_and_is_told_by_token(tmp_path: Path, text: Path) -> None:
    sets = {"precision__dtype": "fp32", "train__max_steps": 60, "train__global_batch": 16}
    train(tmp_path, text, {**sets, "train__epochs": 10})
    losses = [r["loss"] for r in records(tmp_path, "step")]
    assert losses[0] == pytest.approx(math.log(256), rel=0.05)
    assert losses[-1] < losses[0] - 1.5
    epoch = records(tmp_path, "epoch")[-1]
    assert f"tokens/s {epoch['images_per_s'] * LENGTH:,.0f}" in plain_row(epoch, best=False)
    last = records(tmp_path, "eval")[-1]
    assert last["metrics"]["perplexity"] == pytest.approx(math.exp(last["loss"]), rel=1e-5)

    ids = torch.from_numpy(np.fromfile(text, "<u2").astype(np.int64))
    held_out = ids[len(ids) - round(0.2 * len(ids)) :]
    num = (len(held_out) - 1) // LENGTH
    assert last["count"] == num
    model = GPT(256, LENGTH, depth=2, width=32, heads=2)
    model.load_state_dict(weights(tmp_path))
    with torch.no_grad():
        logits = model(held_out[: num * LENGTH].view(num, LENGTH)).flatten(0, 1)
    plain = functional.cross_entropy(logits, held_out[1 : num * LENGTH + 1])
    assert last["loss"] == pytest.approx(float(plain), rel=1e-5)


def test_ranks_and_a_resume_change_nothing(tmp_path: Path, text: Path) -> None:
    """fp64: 1 and 2 ranks over a tail, and 2 ranks that go on from a checkpoint of 1."""
    sets = {"train__max_steps": 9, "train__global_batch": 100, "checkpoint__every_steps": 3}
    sets |= {"train__epochs": 3, "checkpoint__keep_last": 10}
    train(tmp_path / "one", text, sets)
    run_ranks(train, 2, tmp_path / "two", text, sets)
    steps = records(tmp_path / "one", "step")
    assert len({r["rows"] for r in steps}) == 2, "there is a tail"
    one = weights(tmp_path / "one")
    assert largest_difference(weights(tmp_path / "two"), one) < 1e-9
    evaluations = [records(tmp_path / name, "eval")[-1] for name in ("one", "two")]
    assert evaluations[0]["metrics"]["perplexity"] == pytest.approx(
        evaluations[1]["metrics"]["perplexity"], rel=1e-9
    )
    for path in (tmp_path / "one" / "checkpoints").iterdir():
        if path.name not in ("step-00000003",):
            shutil.rmtree(path)
    (tmp_path / "one" / "model.safetensors").unlink()
    run_ranks(train, 2, tmp_path / "one", text, sets)
    assert largest_difference(weights(tmp_path / "one"), one) < 1e-9


def test_gpt_looks_only_back_and_starts_level() -> None:
    torch.manual_seed(0)
    model = GPT(50, 16, depth=2, width=16, heads=4).eval()
    tokens = torch.randint(0, 50, (2, 16))
    logits = model(tokens)
    assert logits.shape == (2, 16, 50)
    changed = tokens.clone()
    changed[:, 9] += 1
    differs = (model(changed % 50) != logits).any(dim=-1).any(dim=0)
    assert not differs[:9].any() and differs[9:].all()
    names = [name for name, _ in model.named_parameters()]
    assert len(names) == len(set(model.state_dict()))
    assert functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()) < 1.05 * math.log(50)


@pytest.mark.parametrize(
    ("sets", "part"),
    [
        ({"model__name": "small_resnet", "model__options": {}}, "takes images"),
        ({"data__source": "digits"}, "takes sequences of tokens, and digits gives none"),
        ({"model__options": {"width": 33, "heads": 2}}, "cannot be split over heads = 2"),
    ],
)
def test_data_and_model_that_do_not_fit(
    tmp_path: Path, text: Path, sets: dict[str, Any], part: str
) -> None:
    with pytest.raises(UserError, match="hint: ") as caught:
        train(tmp_path, text, sets)
    assert part in caught.value.what
