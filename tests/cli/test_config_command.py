"""`paceline config`: the resolved settings, where each came from, as TOML and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

from paceline.config.load import load_config
from paceline.config.schema import RunConfig
from tests.cli.commands import paceline

CONCEPTS = Path(__file__).parents[2] / "docs" / "concepts"


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_its_output_is_a_configuration_again(tmp_path: Path) -> None:
    done = paceline("config", "--set", "model.options.x=[1, 2]", "--epochs", "3")
    (tmp_path / "again.toml").write_text(done.out)
    again = load_config(tmp_path / "again.toml").config
    assert again == load_config(sets=["model.options.x=[1, 2]", "train.epochs=3"]).config


def test_each_value_says_where_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text("[train]\nepochs = 30\nglobal_batch = 64\n")
    done = paceline(
        "config", "experiment.toml", "--lr", "0.1", "--set", "optim.momentum=0.8", folder=tmp_path
    )
    assert (done.code, done.err) == (0, "")
    out = lines(done.out)
    assert "epochs = 30 # changed: experiment.toml line 2 (default: 20)" in out
    assert "global_batch = 64 # experiment.toml line 3, same as the default" in out
    assert "base_lr = 0.1 # changed: --lr (default: 0.4)" in out
    assert "momentum = 0.8 # changed: --set (default: 0.9)" in out
    assert "seed = 0 # default" in out
    assert sum("changed" in line for line in out) == 3


def test_flags_and_set_count_in_the_order_given() -> None:
    for line, expected in [
        (["--epochs", "3", "--set", "train.epochs=4"], "epochs = 4 # changed: --set (default: 20)"),
        (["--set", "train.epochs=4", "--epochs=3"], "epochs = 3 # changed: --epochs (default: 20)"),
    ]:
        assert expected in lines(paceline("config", *line).out)


def test_the_file_may_stand_anywhere(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("seed = 5")
    for text in ("a.toml --lr 1", "--lr 1 a.toml", "--lr=1 a.toml --ranks=1"):
        out = paceline("config", *text.split(), folder=tmp_path).out
        assert "seed = 5 # changed: a.toml line 1 (default: 0)" in lines(out)


def test_every_flag_sets_its_key() -> None:
    done = paceline(
        *["config", "--format", "json", "--data", "synthetic", "--model", "resnet18"],
        *["--epochs", "3", "--global-batch", "96", "--lr", ".5", "--strategy", "ddp"],
        *["--ranks", "3", "--device", "cpu", "--precision", "bf16", "--max-minutes", "1.5"],
    )
    page = json.loads(done.out)
    assert page["config"]["data"]["source"] == "synthetic"
    assert page["config"]["model"]["name"] == "resnet18"
    assert page["config"]["train"]["epochs"] == 3
    assert page["config"]["train"]["global_batch"] == 96
    assert page["config"]["train"]["max_minutes"] == 1.5
    assert page["config"]["optim"]["base_lr"] == 0.5
    assert page["config"]["parallel"]["strategy"] == "ddp"
    assert page["config"]["parallel"]["ranks"] == 3
    assert page["config"]["device"] == "cpu"
    assert page["config"]["precision"]["dtype"] == "bf16"
    assert len(page["changed"]) == 10
    assert page["origins"]["optim.base_lr"] == "--lr"


def test_json_without_changes_is_the_defaults() -> None:
    page = json.loads(paceline("config", "--format", "json").out)
    assert page["changed"] == []
    assert page["config"]["train"]["epochs"] == RunConfig().train.epochs
    assert set(page["origins"].values()) == {"default"}


def test_the_page_on_configuration_shows_what_is_printed(tmp_path: Path) -> None:
    page = (CONCEPTS / "configuration.md").read_text(encoding="utf-8")
    example = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    shown = re.search(r"\$ (paceline config .*) \| grep changed\n(.*?)```", page, re.DOTALL)
    assert example is not None
    assert shown is not None
    (tmp_path / "experiment.toml").write_text(example[1])
    printed = paceline(*shown[1].split()[1:], folder=tmp_path).out
    assert [line for line in printed.splitlines() if "changed" in line] == shown[2].splitlines()
