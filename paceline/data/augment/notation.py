"""How a pipeline of augmentations is written, in a setting or from Python; knows neither torch nor the steps.

A text is one step or several with commas: `resized-crop, flip(p=0.3)`. A list holds such texts, tables
`{ name = "erase", p = 0.25 }`, and, from Python, callables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.config import toml
from paceline.config.source import parse_value
from paceline.errors import UserError

_STEP = re.compile(r"\s*([A-Za-z_][\w.:-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)
_BARE_WORD = re.compile(r"(=\s*)(?!(?:true|false|inf|nan)\b)([A-Za-z][\w-]*)")
_EXAMPLE = 'write, for example, "flip" or "erase(p=0.25)"'


@dataclass(frozen=True)
class Written:
    """One step as it was written. call: a callable given from Python instead of a name."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    call: Callable[..., Any] | None = None

    @property
    def is_function(self) -> bool:
        """Whether it is a user's own: `module:function`, or a callable."""
        return self.call is not None or ":" in self.name


def read_steps(written: Any) -> list[Written]:
    """The steps of a setting's value, or of what paceline.train(augment=…) was given."""
    if isinstance(written, str):
        return [_from_text(part) for part in _parts(written)]
    if callable(written):
        return [_from_callable(written)]
    if isinstance(written, Mapping):
        return [_from_table(written)]
    if isinstance(written, Sequence):
        return [step for item in written for step in read_steps(item)]
    raise UserError(f"data.augment holds a {type(written).__name__}", _EXAMPLE)


def as_setting(written: Any) -> str | list[Any]:
    """The same for a configuration, in which a callable can only be named."""
    steps: list[Any] = []
    for step in read_steps(written):
        steps.append({"name": step.name, **step.options} if step.options else step.name)
    return steps


def _from_callable(call: Callable[..., Any]) -> Written:
    named = call if hasattr(call, "__qualname__") else type(call)
    return Written(f"{named.__module__}:{named.__qualname__}", {}, call)


def _from_table(table: Mapping[str, Any]) -> Written:
    name = table.get("name")
    if not isinstance(name, str):
        raise UserError(
            f"data.augment: the step {toml.brief(dict(table))} has no name",
            'write { name = "erase", p = 0.25 }',
        )
    return Written(name.strip(), {key: value for key, value in table.items() if key != "name"})


def _from_text(text: str) -> Written:
    found = _STEP.fullmatch(text)
    if not found:
        raise UserError(f"data.augment: {toml.brief(text.strip())} is no step", _EXAMPLE)
    name, inside = found[1], found[2]
    if not (inside or "").strip():
        return Written(name)
    try:
        options = parse_value("{" + _BARE_WORD.sub(r'\1"\2"', inside) + "}")
    except ValueError:
        raise UserError(
            f"data.augment: {toml.brief(text.strip())} is not name(option=value, …)",
            'write, for example, "rand-augment(magnitude=9)"',
        ) from None
    return Written(name, options)


def _parts(text: str) -> list[str]:
    """Cut at the commas that stand outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        depth += (character in "([{") - (character in ")]}") if not quote else 0
        if character == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts
