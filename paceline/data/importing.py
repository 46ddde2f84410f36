"""From `module:function` to the user's function. What it is called with, and when, is the caller's business."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from paceline.errors import UserError, nearest


def import_function(spec: str, setting: str) -> Callable[..., Any]:
    """The function that `spec` names; modules in the working directory are found too.

    setting: the key that holds it, for messages.
    """
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise UserError(f"{setting} = {spec!r} names no function", "write module:function")
    found: Any = _import_module(module_name, spec, setting)
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n, value in vars(found).items() if callable(value) and n[0] != "_"]
            where = getattr(found, "__file__", None) or module_name
            raise UserError(f"{setting} = {spec!r}: {where} has no {part!r}", nearest(part, known))
        found = getattr(found, part)
    if not callable(found):
        raise UserError(
            f"{setting} = {spec!r} is a {type(found).__name__}, no function", "name a function"
        )
    return found


def _import_module(module_name: str, spec: str, setting: str) -> Any:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        missing = e.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            raise UserError(
                f"{setting} = {spec!r}: there is no module {missing!r}",
                f"start in the folder that holds it (now {here}), or install it",
            ) from e
        raise UserError(
            f"{setting} = {spec!r}: {module_name} imports {missing!r}, which is not installed",
            f"pip install {missing.partition('.')[0]} (the package's name may differ)",
        ) from e
    except (ImportError, SyntaxError) as e:
        raise UserError(
            f"{setting} = {spec!r}: importing {module_name} fails: {_describe(e)}", "correct it"
        ) from e


def _describe(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}:{error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error} ({last.filename}:{last.lineno})"
