"""TOML as text: the parser of this Python, a writer of values, line numbers; knows no settings."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ParseError = tomllib.TOMLDecodeError
parse = tomllib.loads

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_KEY = r"[A-Za-z0-9_-]+(?:[ \t]*\.[ \t]*[A-Za-z0-9_-]+)*"
_HEADER = re.compile(rf"[ \t]*\[[ \t]*({_KEY})[ \t]*\]")
_ASSIGNMENT = re.compile(rf"[ \t]*({_KEY})[ \t]*=[ \t]*(.*)")
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}


def write_value(value: Any) -> str:
    """A value on one line, such that `parse` gives it back exactly."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_escape(character) for character in value) + '"'
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(write_value(item) for item in value) + "]"
    if hasattr(value, "isoformat"):  # a date: no setting holds one, but a message may
        return str(value.isoformat())
    assert isinstance(value, Mapping), f"{type(value).__name__} is no TOML value"
    if not value:
        return "{}"
    return "{ " + ", ".join(f"{write_key(k)} = {write_value(v)}" for k, v in value.items()) + " }"


def write_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else write_value(key)


def _escape(character: str) -> str:
    """Escape what TOML must, and what a terminal would act on instead of showing."""
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) <= 0xFFFF else f"\\U{ord(character):08x}"


def brief(value: Any, limit: int = 60) -> str:
    """A value for a message: as TOML where it is TOML data, on one line, shortened."""
    try:
        return printable(write_value(value), limit)
    except (AssertionError, RecursionError):
        return printable(str(value), limit)


def printable(text: str, limit: int = 60) -> str:
    """Text for a message: on one line, escaped where a terminal would act on it, shortened."""
    text = "".join(c if c.isprintable() else _escape(c) for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def line_numbers(text: str) -> dict[str, int]:
    """The line of each dotted key and [section] that stands plainly at the start of a line.

    A reading aid for messages, not a parser: quoted keys and inline tables are left out, and so is
    a key that seems to stand in two places (one of them is then text inside a string).
    """
    lines: dict[str, list[int]] = {}
    section, open_quote = "", ""
    for number, line in enumerate(text.split("\n"), 1):
        if open_quote:
            open_quote = "" if open_quote in line else open_quote
        elif header := _HEADER.match(line):
            section = _normal(header[1])
            lines.setdefault(section, []).append(number)
        elif assignment := _ASSIGNMENT.match(line):
            key = f"{section}.{_normal(assignment[1])}".lstrip(".")
            lines.setdefault(key, []).append(number)
            quote = assignment[2][:3]
            if quote in ('"""', "'''") and quote not in assignment[2][3:]:
                open_quote = quote
    return {key: numbers[0] for key, numbers in lines.items() if len(numbers) == 1}


def _normal(key: str) -> str:
    return "".join(key.split())
