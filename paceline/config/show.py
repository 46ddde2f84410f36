"""A resolved configuration for people and programs, with where each value came from."""

from __future__ import annotations

import json
from typing import Any

from paceline.config import toml
from paceline.config.keys import flatten, section_names, settings, value_of
from paceline.config.load import DEFAULT, Resolved
from paceline.config.schema import RunConfig
from paceline.config.write import difference, write_config


def as_toml(resolved: Resolved) -> str:
    """A TOML file whose remarks say where each value came from."""
    return write_config(resolved.config, lambda key: _remark(resolved, key))


def _remark(resolved: Resolved, key: str) -> str:
    origin = resolved.origin(key)
    setting = settings().get(key)
    if origin == DEFAULT:
        return DEFAULT
    if setting is None:  # an entry of a free table
        return f"changed: {origin}"
    if value_of(resolved.config, setting) == setting.default:
        return f"{origin}, same as the default"
    return f"changed: {origin} (default: {toml.write_value(setting.default)})"


def as_json(resolved: Resolved) -> str:
    """{"config": settings by section, "origins": by key, "changed": keys}."""
    page = {
        "config": _nested(resolved.config),
        "origins": dict(resolved.origins),
        "changed": [key for key, _, _ in difference(RunConfig(), resolved.config)],
    }
    return json.dumps(page, indent=2) + "\n"


def _nested(config: RunConfig) -> dict[str, Any]:
    nested: dict[str, Any] = {section: {} for section in section_names()}
    for key, value in flatten(config).items():
        setting = settings()[key]
        (nested[setting.section] if setting.section else nested)[setting.name] = value
    return nested
