"""`import paceline`: light, and everything it promises is there."""

from __future__ import annotations

from pathlib import Path

import pytest

import paceline
from paceline.config import toml
from tests.cli.commands import paceline as command
from tests.cli.commands import python

ROOT = Path(__file__).parents[2]


def test_import_brings_no_torch() -> None:
    done = python(
        "import sys, paceline; paceline.RunConfig(); paceline.load_config(); "
        "assert issubclass(paceline.UserError, Exception); "
        "print({'torch', 'numpy', 'rich'} & set(sys.modules))"
    )
    assert done == (0, "set()\n", "")


def test_every_name_is_there() -> None:
    for name in paceline.__all__:
        assert getattr(paceline, name).__name__ == name
        assert name in dir(paceline)
    assert sorted(paceline.__all__) == paceline.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'paceline' has no attribute 'trian'"):
        paceline.trian  # noqa: B018


def test_the_version_is_that_of_the_project() -> None:
    project = toml.parse((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert paceline.__version__ == project["version"]
    assert command("--version") == (0, f"paceline {paceline.__version__}\n", "")
