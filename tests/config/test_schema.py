"""The list of settings: every one described, reachable, and in the reference page."""

from __future__ import annotations

import subprocess
import sys
import typing
from pathlib import Path
from typing import Literal

import paceline
from paceline.config.flags import FLAGS
from paceline.config.keys import OTHER_NAMES, settings
from paceline.config.reference import reference
from paceline.config.schema import RunConfig

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_page_is_up_to_date() -> None:
    page = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    command = "python -m paceline.config.reference > docs/reference/settings.md"
    assert page == reference(), f"run `{command}`"


def test_the_reference_command_prints_the_page() -> None:
    command = [sys.executable, "-m", "paceline.config.reference"]
    printed = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    assert printed.stdout == reference()


def test_every_setting_says_what_it_does() -> None:
    for setting in settings().values():
        assert setting.help, setting.key
        assert not setting.help.endswith("."), setting.key
        assert "|" not in setting.help, f"{setting.key}: a bar ends a cell of the page"


def test_the_ten_flags_say_what_the_schema_says() -> None:
    assert list(FLAGS) == [
        "--data",
        "--model",
        "--epochs",
        "--global-batch",
        "--lr",
        "--strategy",
        "--ranks",
        "--device",
        "--precision",
        "--max-minutes",
    ]
    for flag in FLAGS.values():
        setting = settings()[flag.key]
        assert flag.help == setting.help
        if typing.get_origin(setting.kind) is Literal:
            assert flag.metavar == "|".join(typing.get_args(setting.kind))


def test_names_of_other_tools_lead_to_settings() -> None:
    assert set(OTHER_NAMES.values()) <= set(settings())
    own = {setting.name for setting in settings().values()}
    assert not own & set(OTHER_NAMES)
    assert all(name == name.lower().replace("_", "") for name in OTHER_NAMES)


def test_sections_can_be_made_from_python() -> None:
    config = paceline.RunConfig(train=paceline.TrainConfig(epochs=3))
    assert config.train.epochs == 3
    assert config.optim == RunConfig().optim
