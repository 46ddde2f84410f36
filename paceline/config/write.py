"""A configuration as text: TOML that reads back exactly, its digest, what two differ in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from paceline.config import toml
from paceline.config.keys import flatten, section_names, settings
from paceline.config.schema import RunConfig
from paceline.config.values import is_table


def write_config(config: RunConfig, remark: Callable[[str], str] | None = None) -> str:
    """The whole configuration as TOML, defaults included; `load_config` gives it back exactly.

    remark: from a key (`train.epochs`, `model.options.width`) to a comment at the end of its line.
    """
    values = flatten(config)
    blocks = [_block("", values, remark)]
    for section in section_names():
        blocks.append(_block(section, values, remark))
        blocks += [
            _lines(f"[{key}]", [(f"{key}.{name}", name, v) for name, v in table.items()], remark)
            for key, table in values.items()
            if settings()[key].section == section and _is_open_table(key, table)
        ]
    return "\n".join(blocks)


def _is_open_table(key: str, value: Any) -> bool:
    """Whether a free table is written under a header of its own: only where it holds something."""
    return is_table(settings()[key].kind) and bool(value)


def _block(section: str, values: dict[str, Any], remark: Callable[[str], str] | None) -> str:
    entries = [
        (key, setting.name, values[key])
        for key, setting in settings().items()
        if setting.section == section and not _is_open_table(key, values[key])
    ]
    return _lines(f"[{section}]" if section else "", entries, remark)


def _lines(
    header: str, entries: list[tuple[str, str, Any]], remark: Callable[[str], str] | None
) -> str:
    lines = [f"{toml.write_key(name)} = {toml.write_value(value)}" for _, name, value in entries]
    if remark is not None:
        width = min(max(map(len, lines), default=0), 40)
        remarks = [remark(key) for key, _, _ in entries]
        lines = [f"{line:<{width}}  # {said}" for line, said in zip(lines, remarks, strict=True)]
    return "".join(f"{line}\n" for line in ([header] if header else []) + lines)


def digest(config: RunConfig) -> str:
    """A short fingerprint: equal for equal configurations only, the same on every machine."""
    return hashlib.sha256(_canonical(flatten(config)).encode()).hexdigest()[:16]


def difference(old: RunConfig, new: RunConfig) -> list[tuple[str, Any, Any]]:
    """The settings in which two configurations differ, as (key, old value, new value)."""
    return list(_differences(flatten(old), flatten(new)))


def _differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key, value in old.items():
        if _canonical(value) != _canonical(new[key]):
            yield key, value, new[key]


def _canonical(value: Any) -> str:
    """The value as text that tells 1 from 1.0 and true, whatever the order of a table's entries."""
    return json.dumps(value, sort_keys=True)
