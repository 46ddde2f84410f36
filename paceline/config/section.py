"""What a section of settings is made of: fields with help and bounds, checked one by one when it is built.

Which settings there are is `config/schema.py`'s business; nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from dataclasses import field
from typing import Any

from paceline.config import toml
from paceline.config.values import WrongValueError, accept
from paceline.errors import UserError


class SettingError(UserError):
    """A value that one setting refuses; `key` lets whoever knows add where the value came from."""

    def __init__(self, what: str, hint: str = "", key: str = "") -> None:
        super().__init__(what, hint)
        self.key = key


def refused(key: str, value: Any, problem: str, hint: str) -> SettingError:
    """The error for a value; `problem` follows it in the sentence."""
    return SettingError(f"{key} = {toml.brief(value)} {problem}", hint, key)


def setting(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    below: float | None = None,
) -> Any:
    """A field with its help text and bounds. `at_least` is inclusive, `below` exclusive."""
    metadata = {"help": help, "at_least": at_least, "below": below}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


class Section:
    """A group of settings; checks type, choices and bounds of every field when it is built.

    Values are kept as their field's kind: an integer given for a number as float, a list given for
    a tuple as tuple, tables as a copy. So equal configurations compare equal, however written.
    """

    def __post_init__(self) -> None:
        for f, kind in fields_with_kinds(typing.cast(Any, type(self))):
            value = _checked(section_name(type(self)) + f.name, f, kind, getattr(self, f.name))
            object.__setattr__(self, f.name, value)


@functools.cache
def fields_with_kinds(section: type[Section]) -> list[tuple[dataclasses.Field[Any], Any]]:
    """A section's fields with their annotations as types, in order."""
    hints = typing.get_type_hints(section)
    return [(f, hints[f.name]) for f in dataclasses.fields(typing.cast(Any, section))]


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def section_name(cls: type) -> str:
    """`data.` for DataConfig, `` for RunConfig: the prefix of its keys."""
    return "" if cls.__name__ == "RunConfig" else cls.__name__.removesuffix("Config").lower() + "."


def _checked(key: str, f: dataclasses.Field[Any], kind: Any, value: Any) -> Any:
    if is_section(kind):
        if not isinstance(value, kind):
            hint = f"give a paceline.{kind.__name__}(…)"
            raise refused(key, value, "is not a section of settings", hint)
        return value
    try:
        accepted = accept(kind, value)
    except WrongValueError as error:
        raise refused(key, value, error.problem, error.hint) from None
    _check_bounds(key, f, accepted)
    return accepted


def _check_bounds(key: str, f: dataclasses.Field[Any], value: Any) -> None:
    low, high = f.metadata.get("at_least"), f.metadata.get("below")
    numbers = value if isinstance(value, tuple) else (value,)
    for number in (n for n in numbers if not isinstance(n, str)):  # a field may take a word too
        if low is not None and number < low:
            raise refused(key, value, "is too small", f"give a value of at least {low:.12g}")
        if high is not None and number >= high:
            raise refused(key, value, "is too large", f"give a value below {high:.20g}")
