"""Recipes: experiments as TOML files that ship with the package, each with where it comes from.

A recipe begins with comments: a title, then `key: text` for each of KEYS, where deeper lines go on with the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UserError, nearest

PREFIX = "recipe:"  # before a recipe's name, where a configuration file is asked for
KEYS = ("model", "data", "reaches", "hardware", "source", "differs")
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """about: by KEYS. differs: what the source does and this file leaves out, or "nothing known"."""

    name: str
    path: Path
    title: str
    about: Mapping[str, str]


def recipes() -> list[Recipe]:
    return [_read(path) for path in sorted(FOLDER.glob("*.toml"))]


def find_recipe(name: str) -> Recipe:
    found = {recipe.name: recipe for recipe in recipes()}
    if name not in found:
        raise UserError(f"unknown recipe {name!r}", nearest(name, list(found)))
    return found[name]


def _read(path: Path) -> Recipe:
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    title, *rest = [line.removeprefix("#").removeprefix(" ") for line in lines[:end]]
    about: dict[str, str] = {}
    key = ""
    for line in rest:
        if not line.startswith(" "):
            key, _, line = line.partition(":")
        about[key] = f"{about.get(key, '')} {line.strip()}".strip()
    return Recipe(path.stem, path, title, about)
