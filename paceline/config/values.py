"""Kinds of values: what a field's annotation accepts, in words and in checks; knows no settings."""

from __future__ import annotations

import math
import numbers
import os
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from paceline.config import toml

INTEGERS = range(-(2**63), 2**63)  # what TOML promises to carry
Steps = str | Sequence[Any]  # a pipeline: a text, or a list of texts and tables with a name
MAX_DEPTH = 16  # of tables and lists in model.options; far more than an argument needs


class WrongValueError(Exception):
    """A value that a kind of field does not accept.

    problem: follows the value in a sentence ("is not an integer"). hint: what to write instead.
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint)
        self.problem = problem
        self.hint = hint


def describe(kind: Any) -> str:
    """A field's annotation in words: `an integer`, `one of a, b, c`."""
    if is_steps(kind):
        return "a string or a list of steps"
    if is_union(kind):
        return " or ".join(describe(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        return ("one of " if len(choices) > 1 else "") + ", ".join(choices)
    if is_list_of_text(kind):
        return "a list of strings"
    if is_list_of_numbers(kind):
        return "a list of numbers"
    if typing.get_origin(kind) is tuple:
        return f"a list of {len(typing.get_args(kind))} numbers"
    if is_table(kind):
        return "a table"
    return {bool: "true or false", int: "an integer", float: "a number", str: "a string"}[kind]


def is_table(kind: Any) -> bool:
    """Whether a field is a free table, such as `model.options`."""
    return typing.get_origin(kind) is Mapping


def is_union(kind: Any) -> bool:
    """Whether a field takes values of several kinds, such as `auto` or a number."""
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def is_list_of_text(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple and typing.get_args(kind) == (str, ...)


def is_list_of_numbers(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple and typing.get_args(kind) == (float, ...)


def is_steps(kind: Any) -> bool:
    """Whether a field is a pipeline, such as `data.augment`."""
    return bool(kind == Steps)


def is_text(kind: Any) -> bool:
    """Whether a field holds a string, one of a few choices included."""
    return kind is str or typing.get_origin(kind) is Literal


def accept(kind: Any, value: Any) -> Any:
    """The value as a field of this kind keeps it: int as float, list as tuple, else unchanged."""
    if is_steps(kind):
        return _steps(value)
    if is_union(kind):
        return _any_of(kind, value)
    if is_list_of_text(kind):
        return _texts(value)
    if typing.get_origin(kind) is Literal:
        return _choice(typing.get_args(kind), value)
    if is_list_of_numbers(kind):
        return _numbers(len(value) if isinstance(value, (list, tuple)) else 2, value)
    if typing.get_origin(kind) is tuple:
        return _numbers(len(typing.get_args(kind)), value)
    if is_table(kind):
        return _table(value)
    return _SCALARS[kind](value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise WrongValueError("is not true or false", "write true or false")
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise WrongValueError("is not an integer", _number_hint(value, "write a whole number"))
    if int(value) not in INTEGERS:
        raise WrongValueError("is beyond 64 bits", "write a smaller number")
    return int(value)


def _number(value: Any) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise WrongValueError("is not a number", _number_hint(value, "write a number"))
    if isinstance(value, numbers.Integral):
        value = _integer(value)
    if not math.isfinite(value):
        raise WrongValueError("is not a finite number", "write a finite number")
    return float(value)


def _number_hint(value: Any, hint: str) -> str:
    """Also say that quotes are wrong where they are all that is."""
    try:
        return f"{hint}, without quotes" if isinstance(value, str) and float(value) else hint
    except ValueError:
        return hint


def _text(value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise WrongValueError("is not a string", "put it in quotes")
    if "\0" in value:
        raise WrongValueError("contains a NUL character", "remove it")
    return _unicode(value)


def _unicode(value: str) -> str:
    """Refuse lone surrogates, as which bytes of a command line arrive that are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise WrongValueError("is not UTF-8 text", "use a name that is UTF-8") from None
    return value


def _choice(choices: Sequence[str], value: Any) -> str:
    if not isinstance(value, str) or value not in choices:
        raise WrongValueError("is not one of its choices", "choose one of " + ", ".join(choices))
    return value


def _any_of(kind: Any, value: Any) -> Any:
    """The value as the first of the kinds that accepts it."""
    for part in typing.get_args(kind):
        try:
            return accept(part, value)
        except WrongValueError:
            continue
    raise WrongValueError(f"is not {describe(kind)}", f"give {describe(kind)}")


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise WrongValueError("is not a list of strings", 'write, for example, ["first", "second"]')
    try:
        return tuple(_text(item) for item in value)
    except WrongValueError as error:
        raise WrongValueError(f"holds a value that {error.problem}", error.hint) from None


def _numbers(count: int, value: Any) -> tuple[float, ...]:
    if not isinstance(value, (list, tuple)) or len(value) != count:
        example = ", ".join(["0.9", "0.99", "0.999"][:count])
        raise WrongValueError(
            f"is not a list of {count} numbers", f"write, for example, [{example}]"
        )
    try:
        return tuple(_number(item) for item in value)
    except WrongValueError as error:
        raise WrongValueError(f"holds a value that {error.problem}", error.hint) from None


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise WrongValueError("is not a table", "write, for example, { name = 1 }")
    return {key: plain(item) for key, item in _keys_checked(value).items()}


def _steps(value: Any) -> str | tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        return _text(value)
    for item in value:
        if not isinstance(item, str) and not (isinstance(item, Mapping) and "name" in item):
            raise WrongValueError(
                f"holds the step {toml.brief(item)}",
                'write steps as "flip" or { name = "flip", p = 0.5 }',
            )
    return tuple(plain(item, 2) for item in value)


def plain(value: Any, depth: int = 1) -> Any:
    """A copy as plain TOML data: strings, numbers, booleans, lists, tables."""
    if depth > MAX_DEPTH:
        raise WrongValueError(f"is nested more than {MAX_DEPTH} deep", "use a flatter table")
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return _integer(value)
    if isinstance(value, numbers.Real):
        return _number(value)
    if isinstance(value, str):
        return _unicode(value)
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item, depth + 1) for key, item in _keys_checked(value).items()}
    raise WrongValueError(
        f"holds a {type(value).__name__}",
        "use strings, numbers, true, false, lists and tables only",
    )


def _keys_checked(value: Mapping[Any, Any]) -> Mapping[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise WrongValueError(f"has the key {toml.brief(key)}", "use strings as keys")
        _unicode(key)
    return value


_SCALARS = {bool: _boolean, int: _integer, float: _number, str: _text}
