"""Token files: what comes out is what was written, and a wrong file is one sentence."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.config.schema import DataConfig
from paceline.data.bundle import load_data
from paceline.data.sources import Opened, open_sources
from paceline.data.text_to_tokens import main, write_tokens
from paceline.errors import UserError


def opened(path: Path, **settings: Any) -> Opened:
    config = DataConfig(**{"source": f"tokens:{path}", "sequence_length": 8, **settings})
    return open_sources(config, seed=0)


def write_bin(path: Path, ids: Any, dtype: str = "uint16", **about: Any) -> Path:
    path.write_bytes(np.asarray(ids, {"uint16": "<u2", "uint32": "<u4"}[dtype]).tobytes())
    path.with_suffix(".json").write_text(json.dumps({"dtype": dtype, **about}))
    return path


@pytest.mark.parametrize("kind", ["uint16", "uint32", "npy"])
def test_a_sequence_and_the_tokens_that_follow(tmp_path: Path, kind: str) -> None:
    ids = np.random.default_rng(0).integers(0, 1000, 1000)
    if kind == "npy":
        np.save(tmp_path / "text.npy", ids.astype(np.uint16))
        path = tmp_path / "text.npy"
    else:
        path = write_bin(tmp_path / "text.bin", ids, kind, vocabulary=1000)
    found = opened(path)
    assert found.evaluation is not None
    assert (len(found.train), len(found.evaluation)) == (99, 24)  # of 800 and 200 tokens
    sample = found.train.load(3)
    assert sample["input"].dtype == sample["target"].dtype == np.int64
    assert np.array_equal(sample["input"], ids[24:32])
    assert np.array_equal(sample["target"], ids[25:33])
    assert np.array_equal(found.evaluation.load(0)["input"], ids[800:808])
    assert found.train.num_classes == (int(ids.max()) + 1 if kind == "npy" else 1000)
    sent = pickle.loads(pickle.dumps(found.train))
    assert np.array_equal(sent.load(3)["input"], sample["input"])


def test_a_folder_with_two_files(tmp_path: Path) -> None:
    write_bin(tmp_path / "train.bin", np.arange(100), vocabulary=200)
    write_bin(tmp_path / "val.bin", np.arange(100, 133), vocabulary=200)
    found = opened(tmp_path)
    assert found.evaluation is not None
    assert (len(found.train), len(found.evaluation)) == (12, 4)
    assert opened(tmp_path / "train.bin", val_fraction=0).evaluation is None
    other = opened(tmp_path / "train.bin", eval_source=f"tokens:{tmp_path}").evaluation
    assert other is not None and len(other) == 4


def test_the_fingerprint_is_the_texts(tmp_path: Path) -> None:
    def fingerprint(ids: Any, **settings: Any) -> str:
        path = write_bin(tmp_path / "text.bin", ids, vocabulary=300)
        config = DataConfig(source=f"tokens:{path}", **{"sequence_length": 8, **settings})
        return load_data(config, 0).fingerprint

    ids = np.arange(300)
    assert fingerprint(ids) == fingerprint(ids)
    assert len({fingerprint(ids), fingerprint(ids[::-1]), fingerprint(ids, sequence_length=4)}) == 3


def test_text_becomes_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "Grüße, world\n" * 300
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    out = tmp_path / "train.bin"
    assert main([str(tmp_path / "a.txt"), str(tmp_path / "a.txt"), "--out", str(out)]) == 0
    assert "tokens of 256" in capsys.readouterr().out
    assert np.fromfile(out, "<u2").astype(np.uint8).tobytes() == (text * 2).encode()
    assert json.loads(out.with_suffix(".json").read_text())["vocabulary"] == 256
    assert len(opened(out).train) > 0
    assert main([str(tmp_path / "no.txt"), "--out", str(out)]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_a_tokenizer_of_hugging_face(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "to": 1, "be": 2, "or": 3, "not": 4}
    built = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=built, unk_token="[UNK]")
    made.save_pretrained(tmp_path / "words")
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 3)
    out = tmp_path / "train.bin"
    arguments = ["--tokenizer", str(tmp_path / "words"), "--out", str(out)]
    assert main([str(tmp_path / "a.txt"), *arguments]) == 0
    assert np.fromfile(out, "<u2").tolist() == [1, 2, 3, 4, 1, 2] * 3
    assert json.loads(out.with_suffix(".json").read_text())["vocabulary"] == 5


def test_a_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    write_tokens(tmp_path / "t.bin", [[70_000] * 30], vocabulary=70_001)
    assert (tmp_path / "t.bin").stat().st_size == 120
    assert opened(tmp_path / "t.bin").train.load(0)["input"][0] == 70_000


def odd(folder: Path) -> Path:
    path = write_bin(folder / "t.bin", np.arange(100), vocabulary=100)
    path.write_bytes(path.read_bytes()[:-1])
    return path


def without_sidecar(folder: Path) -> Path:
    path = write_bin(folder / "t.bin", np.arange(100))
    path.with_suffix(".json").unlink()
    return path


def wrong_dtype(folder: Path) -> Path:
    path = write_bin(folder / "t.bin", np.arange(100))
    path.with_suffix(".json").write_text('{"dtype": "float32", "vocabulary": 9}')
    return path


def of_floats(folder: Path) -> Path:
    np.save(folder / "t.npy", np.zeros(100))
    return folder / "t.npy"


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (odd, "199 bytes, which are no whole number of uint16 ids of 2 bytes"),
        (without_sidecar, "has no t.json beside it"),
        (wrong_dtype, "says dtype = 'float32'"),
        (of_floats, "an array of float64 with shape (100,), and no token ids"),
        (
            lambda f: write_bin(f / "t.bin", [*range(90), 700, 5], vocabulary=100),
            "holds the id 700 near token 90, and the vocabulary has 100 tokens",
        ),
        (lambda f: write_bin(f / "t.bin", np.arange(10), vocabulary=10), "has too few tokens"),
        (lambda f: write_bin(f / "t.bin", [], vocabulary=10), "holds no tokens"),
        (lambda f: f / "nothing.bin", "does not exist"),
        (lambda f: f, "holds no train.bin or train.npy"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, make: Any, part: str) -> None:
    with pytest.raises(UserError, match="hint: ") as caught:
        opened(make(tmp_path))
    assert part in caught.value.what


def test_an_id_beyond_the_vocabulary_of_a_large_file_is_found_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.data.sources.tokens._CHECKED_AT_ONCE", 10)
    path = write_bin(tmp_path / "t.bin", [*range(90), 700, *range(9)], vocabulary=100)
    source = opened(path, val_fraction=0).train
    source.load(0)
    with pytest.raises(UserError, match="holds the id 700 near token 88"):
        source.load(11)
