"""Layers defaults, a file and the command line into one `RunConfig`, keeping every origin."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config import toml
from paceline.config.assign import Assignment, parse_set
from paceline.config.flags import FLAG_OF
from paceline.config.keys import (
    build,
    flatten,
    section_names,
    settings,
    suggest,
    suggest_section,
    table_of,
)
from paceline.config.schema import RunConfig
from paceline.config.section import SettingError, refused
from paceline.config.source import Source, read_source
from paceline.config.values import MAX_DEPTH, WrongValueError, accept, is_table
from paceline.errors import UserError
from paceline.recipes import PREFIX, find_recipe

DEFAULT = "default"


@dataclass(frozen=True)
class Resolved:
    """A configuration with where each value came from.

    origins: by key; entries of a free table have their own, such as `model.options.width`.
    path: the file that was read, if any. changes: what file, flags and --set assigned, in order.
    """

    config: RunConfig
    origins: Mapping[str, str]
    path: Path | None = None
    changes: tuple[Assignment, ...] = ()

    def origin(self, key: str) -> str:
        """Where the value of a setting, or of an entry of a free table, came from."""
        while key not in self.origins:
            key = key.rpartition(".")[0]
            assert key, "no such setting"
        return self.origins[key]

    def on_top_of(self, base: RunConfig | Resolved) -> Resolved:
        """The same changes made to another configuration: a run's own, when it is resumed."""
        return _resolve(base, self.changes, self.path)


def load_config(
    path: Path | str | None = None,
    *,
    sets: Sequence[str | Assignment] = (),
    flags: Mapping[str, Any] | None = None,
    base: RunConfig | Resolved | None = None,
) -> Resolved:
    """A configuration from `base` or the defaults, the file, `sets` in order, `flags`; later wins.

    path: also "recipe:NAME". sets: texts as after --set (`train.epochs=3`), or assignments. flags: values by key.
    Raises UserError with a sentence and a hint; reads nothing but the file.
    """
    source = None if path is None else _read(str(path))
    path = None if path is None else Path(path)
    changes = [] if source is None else list(_file_assignments(source))
    changes += [parse_set(item) if isinstance(item, str) else item for item in sets]
    changes += [Assignment(k, v, FLAG_OF.get(k, "argument")) for k, v in (flags or {}).items()]
    return _resolve(RunConfig() if base is None else base, tuple(changes), path)


def _resolve(
    base: RunConfig | Resolved, changes: tuple[Assignment, ...], path: Path | None
) -> Resolved:
    config = base.config if isinstance(base, Resolved) else base
    values, origins = flatten(config), _origins(base)
    for change in changes:
        _apply(values, origins, change)
    try:
        return Resolved(build(values), origins, path, changes)
    except SettingError as error:
        origin = origins.get(error.key, DEFAULT)
        raise _located(error, origin) if origin != DEFAULT else error from None


def _origins(base: RunConfig | Resolved) -> dict[str, str]:
    if isinstance(base, Resolved):
        return dict(base.origins)
    defaults, values = flatten(RunConfig()), flatten(base)
    return {key: DEFAULT if values[key] == defaults[key] else "argument" for key in values}


def _located(error: SettingError, origin: str) -> SettingError:
    return SettingError(f"{error.what} ({origin})", error.hint, error.key)


def _apply(values: dict[str, Any], origins: dict[str, str], change: Assignment) -> None:
    table = table_of(change.key)
    try:
        if change.key in settings():
            _apply_setting(values, origins, change)
        elif table is not None:
            _apply_entry(values, origins, change, table)
        else:
            raise _unknown(change.key)
    except SettingError as error:
        raise _located(error, change.origin) from None


def _unknown(key: str) -> SettingError:
    if key in section_names():
        example = next(s.key for s in settings().values() if s.section == key)
        return SettingError(f"{key} is a section, not a setting", f"name one, such as {example}")
    return SettingError(f"unknown setting {_shown(key)}", suggest(key), key)


def _apply_setting(values: dict[str, Any], origins: dict[str, str], change: Assignment) -> None:
    kind = settings()[change.key].kind
    try:
        values[change.key] = accept(kind, change.value)
    except WrongValueError as error:
        raise refused(change.key, change.value, error.problem, error.hint) from None
    if is_table(kind):
        for key in [k for k in origins if k.startswith(f"{change.key}.")]:
            del origins[key]
        origins.update({f"{change.key}.{name}": change.origin for name in values[change.key]})
    origins[change.key] = change.origin


def _apply_entry(
    values: dict[str, Any], origins: dict[str, str], change: Assignment, table: str
) -> None:
    """Set one entry of a free table and leave the others."""
    names = change.key.removeprefix(f"{table}.").split(".")
    if not all(names) or len(names) > MAX_DEPTH:
        hint = f"write {table}.name=value"
        raise SettingError(f"{_shown(change.key)} is no key in {table}", hint)
    try:
        entries = _with_entry(values[table], names, change.value, change.key)
        values[table] = accept(settings()[table].kind, entries)
    except WrongValueError as error:
        raise refused(change.key, change.value, error.problem, error.hint) from None
    origins[table] = origins[f"{table}.{names[0]}"] = change.origin


def _with_entry(table: Mapping[str, Any], names: list[str], entry: Any, key: str) -> dict[str, Any]:
    """A copy of a nested table with one entry set."""
    name, rest = names[0], names[1:]
    if rest:
        inner = table.get(name, {})
        if not isinstance(inner, Mapping):
            what = f"{key} cannot be set: {name} = {toml.brief(inner)} is not a table"
            raise SettingError(what, "give the whole table in one --set", key)
        entry = _with_entry(inner, rest, entry, key)
    return {**table, name: entry}


def _shown(key: str) -> str:
    """A key that came from anywhere, for a message."""
    return toml.printable(".".join(toml.write_key(part) for part in key.split(".")))


def _read(path: str) -> Source:
    """A file, or the recipe of that name."""
    if not path.startswith(PREFIX):
        return read_source(Path(path))
    recipe = find_recipe(path.removeprefix(PREFIX))
    return dataclasses.replace(read_source(recipe.path), name=path)


def _file_assignments(source: Source) -> Iterator[Assignment]:
    for name, value in source.table.items():
        place = source.place(name)
        if name in section_names():
            if not isinstance(value, dict):
                raise _no_section(name, value, place)
            for entry, entry_value in value.items():
                yield _assignment(f"{name}.", entry, entry_value, source.place(f"{name}.{entry}"))
        elif name not in settings() and isinstance(value, dict):
            raise UserError(f"unknown section [{_shown(name)}] ({place})", suggest_section(name))
        else:
            yield _assignment("", name, value, place)


def _assignment(section: str, name: str, value: Any, place: str) -> Assignment:
    if "." in name:  # a quoted key: its dot is part of the name, not a step into a section
        what = f"unknown setting {section}{toml.write_key(name)} ({place})"
        raise UserError(what, "write the key without quotes, or in its [section]")
    return Assignment(section + name, value, place)


def _no_section(name: str, value: Any, place: str) -> UserError:
    example = next(s for s in settings().values() if s.section == name)
    hint = f"write [{name}] on a line of its own, and below it, for example, {example.name} = …"
    return UserError(f"{name} = {toml.brief(value)} is not a section of settings ({place})", hint)
