"""Prints `docs/reference/settings.md`, the reference of all settings, as Markdown on stdout."""

from __future__ import annotations

import typing
from typing import Literal

from paceline.config import toml
from paceline.config.flags import FLAG_OF
from paceline.config.keys import Setting, section_names, settings
from paceline.config.values import describe

HEAD = """# Settings

Every setting of a run, with its type, its default and what it does. They stand in a TOML file
(`paceline train experiment.toml`), after `--set` (`--set train.epochs=30`), and ten of them have a
flag of their own. [Configuration](../concepts/configuration.md) says how these go together.

This page is written by `python -m paceline.config.reference`; a test holds it to the code.
"""


def reference() -> str:
    """The page, as Markdown."""
    parts = [HEAD, _part("", "Top level"), *(_part(s, f"[{s}]") for s in section_names())]
    return "\n".join(parts)


def _part(section: str, title: str) -> str:
    rows = [_row(setting) for setting in settings().values() if setting.section == section]
    head = "| setting | type | default | |\n| --- | --- | --- | --- |\n"
    return f"## {title}\n\n{head}" + "".join(rows)


def _row(setting: Setting) -> str:
    flag = FLAG_OF.get(setting.key)
    name = f"`{setting.key}`" + (f"<br>`{flag}`" if flag else "")
    default = toml.write_value(setting.default)
    return f"| {name} | {_type(setting)} | `{default}` | {setting.help} |\n"


def _type(setting: Setting) -> str:
    if typing.get_origin(setting.kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(setting.kind))
    return describe(setting.kind) + _bounds(setting)


def _bounds(setting: Setting) -> str:
    low, high = setting.at_least, setting.below
    parts = [f"≥ {low:.12g}"] if low is not None else []
    parts += [f"< {_power(high)}"] if high is not None else []
    return " " + ", ".join(parts) if parts else ""


def _power(bound: float) -> str:
    return "2⁶³" if bound == 2**63 else f"{bound:.12g}"


if __name__ == "__main__":
    print(reference(), end="")
