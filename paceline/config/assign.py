"""Values as typed on the command line: `--set section.key=value` and the flags, read by kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from paceline.config import toml
from paceline.config.keys import settings, table_of
from paceline.config.source import parse_value
from paceline.config.values import is_list_of_text, is_steps, is_text
from paceline.errors import UserError

_BARE_POINT = re.compile(r"[-+]?(\d+\.|\.\d+)([eE][-+]?\d+)?")
_BARE_WORD = re.compile(r"[A-Za-z_./~][A-Za-z0-9_./:+@-]*")


@dataclass(frozen=True)
class Assignment:
    """One value for one key, and where it was written (`experiment.toml line 4`, `--set`, `--lr`).

    A key below a free table (`model.options.width`) sets that entry and leaves the others.
    """

    key: str
    value: Any
    origin: str


def parse_set(text: str) -> Assignment:
    """`train.epochs=3`, as it stands after --set."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals:
        hint = f"write --set {key}=VALUE" if key in settings() else "write --set section.key=VALUE"
        raise UserError(f"--set {toml.brief(text)} has no '='", hint)
    if not key:
        raise UserError(f"--set {toml.brief(text)} has no key", "write --set section.key=VALUE")
    return assign_text(key, value.strip(), "--set")


def assign_text(key: str, text: str, origin: str) -> Assignment:
    """A value as typed on the command line, read as its setting's kind asks.

    Text settings take it as it is, or quoted as in TOML; lists of texts may be bare words with commas;
    numbers may have a bare point (`.1`); all else is TOML. What cannot be read stays text, which the
    setting then refuses with its name.
    """
    setting = settings().get(key)
    if setting is None:
        value = _entry_value(key, text, origin) if table_of(key) else text
    elif is_steps(setting.kind) and text.startswith("["):
        value = _list(key, text, origin)
    elif is_text(setting.kind) or is_steps(setting.kind):
        value = _quoted(key, text, origin) if text[:1] in ("'", '"') else text
    elif is_list_of_text(setting.kind) and not text.startswith("["):
        value = [word.strip() for word in text.split(",")] if text else []
    elif setting.kind is float and _BARE_POINT.fullmatch(text):
        value = float(text)
    else:
        value = _value_or_text(text)
    return Assignment(key, value, origin)


def _value_or_text(text: str) -> Any:
    try:
        return parse_value(text)
    except ValueError:
        return text


def _quoted(key: str, text: str, origin: str) -> Any:
    try:
        return parse_value(text)
    except ValueError:
        what = f"{key} = {toml.printable(text)} is not a quoted string ({origin})"
        raise UserError(what, "close the quotes, or leave them out") from None


def _list(key: str, text: str, origin: str) -> Any:
    try:
        return parse_value(text)
    except ValueError:
        what = f"{key} = {toml.printable(text)} is not a list ({origin})"
        raise UserError(
            what, f'write {key}=["NAME", "NAME(option=1)"], in quotes for the shell'
        ) from None


def _entry_value(key: str, text: str, origin: str) -> Any:
    """A value for an entry of a free table, whose kind nobody knows: TOML, or one bare word."""
    try:
        return float(text) if _BARE_POINT.fullmatch(text) else parse_value(text)
    except ValueError:
        if _BARE_WORD.fullmatch(text) and text.lower() not in ("true", "false", "none", "null"):
            return text
        what = f"{toml.printable(key)} = {toml.printable(text)} is not a TOML value ({origin})"
        raise UserError(what, 'write true, false, a number, [a list] or "text"') from None
