"""Patterns over the names of parameters, as fine-tuning's settings have them."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from itertools import accumulate

from paceline.errors import UserError


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern means `layer1.0.conv1.weight`: by its whole name, or a module that it is in (`layer1`)."""
    return any(fnmatch.fnmatchcase(part, pattern) for part in _with_parents(name))


def matching(pattern: str, names: Sequence[str], setting: str) -> list[str]:
    """The names that a pattern means, in their order; none is a UserError that says what is near."""
    found = [name for name in names if matches(pattern, name)]
    if not found:
        known = list(dict.fromkeys(part for name in names for part in _with_parents(name)))
        near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4) or known[:5]
        raise UserError(
            f"{setting}: {pattern!r} matches no parameter of the model",
            f"near are {', '.join(near)}" if near else "the model has no parameters",
        )
    return found


def _with_parents(name: str) -> list[str]:
    """`a`, `a.b`, `a.b.weight` of `a.b.weight`."""
    return list(accumulate(name.split("."), "{}.{}".format))
