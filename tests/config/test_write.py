"""A configuration written as TOML reads back exactly, whatever its strings hold."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from paceline.config import toml
from paceline.config.keys import build, flatten, settings
from paceline.config.load import load_config
from paceline.config.schema import ModelConfig, OptimConfig, RunConfig, TrainConfig
from paceline.config.write import difference, digest, write_config

NASTY = [
    '"',
    "'",
    "\\",
    "\n",
    "\r",
    "\t",
    "\x01",
    "\x1b",
    "\x7f",
    "\x85",
    "é",
    "日",
    "😀",
    "\u202e",
]


def read_back(config: RunConfig, folder: Path) -> RunConfig:
    path = folder / "config.toml"
    path.write_text(write_config(config), encoding="utf-8")
    return load_config(path).config


@pytest.mark.parametrize("text", [*NASTY, "".join(NASTY), '"""', "# no comment", "a = 1", "\ufeff"])
def test_any_string_reads_back(text: str, tmp_path: Path) -> None:
    config = RunConfig(model=ModelConfig(name=text, options={text: text, "list": [text]}))
    assert read_back(config, tmp_path) == config


@pytest.mark.parametrize("number", [0.0, -0.0, 1e-323, 1.7e308, 0.1 + 0.2, 1e16, 1e22, 5e-324])
def test_any_number_reads_back(number: float, tmp_path: Path) -> None:
    config = RunConfig(model=ModelConfig(options={"x": number, "i": -(2**63)}))
    assert repr(read_back(config, tmp_path).model.options["x"]) == repr(number)


def test_random_configurations_read_back(tmp_path: Path) -> None:
    generator = random.Random(0)
    for _ in range(100):
        values = {**flatten(RunConfig()), "model.options": random_table(generator, 3)}
        values["data.source"] = random_text(generator)
        values["optim.base_lr"] = generator.random() * 10 ** generator.randint(-20, 20)
        values["optim.betas"] = (generator.random(), generator.random())
        config = build(values)
        assert read_back(config, tmp_path) == config


def random_text(generator: random.Random) -> str:
    characters = [*NASTY, "a", "B", "7", "-", ".", " ", "=", "[", "]", "#", "{", ","]
    return "".join(generator.choices(characters, k=generator.randint(0, 8)))


def random_table(generator: random.Random, depth: int) -> dict[str, Any]:
    names = [random_text(generator) for _ in range(generator.randint(0, 4))]
    return {name: random_value(generator, depth) for name in names}


def random_value(generator: random.Random, depth: int) -> Any:
    leaves = [True, False, generator.randint(-(10**9), 10**9), generator.random(), "x"]
    leaves.append(random_text(generator))
    if depth == 0 or generator.random() < 0.6:
        return generator.choice(leaves)
    if generator.random() < 0.5:
        return random_table(generator, depth - 1)
    return [random_value(generator, depth - 1) for _ in range(generator.randint(0, 3))]


def test_remarks_do_not_change_what_is_read(tmp_path: Path) -> None:
    config = RunConfig(model=ModelConfig(options={"a": 1}))
    path = tmp_path / "config.toml"
    path.write_text(write_config(config, lambda key: f"about {key}"))
    assert load_config(path).config == config
    assert "a = 1  # about model.options.a" in path.read_text()


def test_every_setting_is_written() -> None:
    assert len(re.findall(r" = ", write_config(RunConfig()))) == len(settings())


def test_difference_names_what_changed() -> None:
    old = RunConfig()
    new = RunConfig(seed=1, train=TrainConfig(epochs=3), optim=OptimConfig(base_lr=0.1))
    assert difference(old, old) == []
    assert difference(old, new) == [
        ("seed", 0, 1),
        ("train.epochs", 20, 3),
        ("optim.base_lr", 0.4, 0.1),
    ]


def test_difference_sees_kinds_but_not_the_order_of_options() -> None:
    def config(**options: Any) -> RunConfig:
        return RunConfig(model=ModelConfig(options=options))

    assert difference(config(a=1, b=2), config(b=2, a=1)) == []
    assert len(difference(config(a=1), config(a=True))) == 1
    assert digest(config(a=1, b=2)) == digest(config(b=2, a=1)) != digest(config(a=1.0, b=2))


def test_digest_does_not_depend_on_the_machine() -> None:
    assert re.fullmatch("[0-9a-f]{16}", digest(RunConfig()))
    assert digest(RunConfig()) == digest(load_config().config)


def test_messages_show_values_on_one_short_line() -> None:
    assert toml.brief("a\nb\x1b[0m") == '"a\\nb\\u001b[0m"'
    assert len(toml.brief("x" * 1000)) == 60
