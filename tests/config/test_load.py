"""Layers of a configuration: which value wins, where it came from, and how texts become values."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.load import load_config
from paceline.config.schema import ModelConfig, RunConfig, TrainConfig
from paceline.errors import UserError


def write(folder: Path, text: str) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text)
    return path


def test_without_anything_there_are_the_defaults() -> None:
    resolved = load_config()
    assert resolved.config == RunConfig()
    assert set(resolved.origins.values()) == {"default"}


def test_a_file_wins_over_defaults_and_names_its_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "seed = 7\n\n[train]\nepochs = 30  # longer\n[optim]\nbase_lr = 1\n")
    resolved = load_config(path)
    assert (resolved.config.seed, resolved.config.train.epochs) == (7, 30)
    assert resolved.config.optim.base_lr == 1.0
    assert isinstance(resolved.config.optim.base_lr, float)
    assert resolved.origins["seed"] == f"{path} line 1"
    assert resolved.origins["train.epochs"] == f"{path} line 4"
    assert resolved.origins["optim.base_lr"] == f"{path} line 6"
    assert resolved.origins["train.global_batch"] == "default"


def test_of_set_the_later_wins_and_flags_come_last(tmp_path: Path) -> None:
    path = write(tmp_path, "[train]\nepochs = 30\n")
    resolved = load_config(
        path, sets=["train.epochs=4", "train.epochs = 5"], flags={"optim.base_lr": 0.1}
    )
    assert resolved.config.train.epochs == 5
    assert resolved.config.optim.base_lr == 0.1
    assert resolved.origins["train.epochs"] == "--set"
    assert resolved.origins["optim.base_lr"] == "--lr"


def test_the_same_changes_on_top_of_a_run_that_is_resumed() -> None:
    saved = RunConfig(seed=3, train=TrainConfig(epochs=50))
    resolved = load_config(sets=["parallel.ranks=1"]).on_top_of(saved)
    assert (resolved.config.seed, resolved.config.train.epochs) == (3, 50)
    assert resolved.config.parallel.ranks == 1
    assert resolved.origins["parallel.ranks"] == "--set"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("model.name=resnet18", "model.name", "resnet18"),
        ('model.name="resnet18"', "model.name", "resnet18"),
        ("model.name='a=b'", "model.name", "a=b"),
        ("runs=2024", "runs", "2024"),
        ("data.source=imagefolder:/data/my photos", "data.source", "imagefolder:/data/my photos"),
        ("data.eval_source=", "data.eval_source", ""),
        ("device=cuda", "device", "cuda"),
        ("deterministic=true", "deterministic", True),
        ("seed=9_000", "seed", 9000),
        ("optim.base_lr=1", "optim.base_lr", 1.0),
        ("optim.base_lr=1e-3", "optim.base_lr", 0.001),
        ("optim.base_lr=.5", "optim.base_lr", 0.5),
        ("optim.betas=[0.8, 0.95]", "optim.betas", (0.8, 0.95)),
        ("model.options={ a = 1, b = [true, 'x'] }", "model.options", {"a": 1, "b": [True, "x"]}),
        ("model.options.a.b=0.5", "model.options", {"a": {"b": 0.5}}),
        ("model.options.kind=deep", "model.options", {"kind": "deep"}),
    ],
)
def test_set_reads_values_by_kind(text: str, key: str, value: object) -> None:
    config = load_config(sets=[text]).config
    for name in key.split("."):
        config = getattr(config, name)
    assert config == value
    assert type(config) is type(value)


def test_set_of_one_option_leaves_the_others(tmp_path: Path) -> None:
    path = write(tmp_path, "[model.options]\na = 1\nb = { c = 2, d = 3 }\n")
    resolved = load_config(path, sets=["model.options.b.c=5"])
    assert resolved.config.model.options == {"a": 1, "b": {"c": 5, "d": 3}}
    assert resolved.origin("model.options.a") == f"{path} line 1"
    assert resolved.origin("model.options.b") == "--set"


def test_a_line_is_never_taken_from_inside_a_string(tmp_path: Path) -> None:
    text = '[model]\nweights = """\n[train]\nepochs = 1\n"""\n\n[train]\nepochs = 9\n'
    path = write(tmp_path, text)
    assert load_config(path).origins["train.epochs"] == f"{path} line 8"


def test_windows_line_ends_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf[train]\r\nepochs = 3\r\n")
    assert load_config(path).config.train.epochs == 3


def test_options_are_a_copy_of_what_was_given() -> None:
    mine = {"sizes": [1, 2]}
    config = ModelConfig(options=mine)
    mine["sizes"].append(3)
    assert config.options == {"sizes": [1, 2]}


def test_values_from_python_are_kept_as_their_kind() -> None:
    numpy = pytest.importorskip("numpy")
    config = RunConfig(seed=numpy.int64(3), runs=Path("here"))  # type: ignore[arg-type]
    assert (type(config.seed), config.runs) == (int, "here")


def test_python_values_are_checked_like_those_of_a_file() -> None:
    with pytest.raises(UserError, match=r"train\.epochs = true is not an integer"):
        TrainConfig(epochs=True)
    with pytest.raises(UserError, match="train = 3 is not a section of settings"):
        RunConfig(train=3)  # type: ignore[arg-type]
