"""Settings by their dotted keys: the list, a configuration as a flat table and back, near names."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.config.schema import RunConfig
from paceline.config.section import fields_with_kinds, is_section
from paceline.config.values import is_table


@dataclass(frozen=True)
class Setting:
    """One setting, as help texts, messages and the reference show it.

    key: `train.epochs`. kind: the annotation as a type. at_least, below: bounds, None where open.
    """

    key: str
    kind: Any
    default: Any
    help: str
    at_least: float | None
    below: float | None

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]


@functools.cache
def settings() -> dict[str, Setting]:
    """Every setting by its key, in the order in which they are shown."""
    found = [
        _setting(f"{section}.{f.name}".lstrip("."), f, kind)
        for section, cls in section_classes().items()
        for f, kind in fields_with_kinds(cls)
        if not is_section(kind)
    ]
    return {setting.key: setting for setting in found}


@functools.cache
def section_classes() -> dict[str, Any]:
    """The class of each section by its name; the top level is ''."""
    sections = {f.name: kind for f, kind in fields_with_kinds(RunConfig) if is_section(kind)}
    return {"": RunConfig, **sections}


def section_names() -> list[str]:
    return [name for name in section_classes() if name]


def table_of(key: str) -> str | None:
    """The free table (`model.options`) that a key lies in, if any."""
    tables = [s.key for s in settings().values() if is_table(s.kind)]
    return next((table for table in tables if key.startswith(f"{table}.")), None)


def _setting(key: str, f: dataclasses.Field[Any], kind: Any) -> Setting:
    factory = f.default_factory
    default = f.default if factory is dataclasses.MISSING else factory()
    about = f.metadata
    return Setting(key, kind, default, about["help"], about["at_least"], about["below"])


def flatten(config: RunConfig) -> dict[str, Any]:
    """The value of every setting by its key."""
    return {key: value_of(config, setting) for key, setting in settings().items()}


def value_of(config: RunConfig, setting: Setting) -> Any:
    section = getattr(config, setting.section) if setting.section else config
    return getattr(section, setting.name)


def build(values: Mapping[str, Any]) -> RunConfig:
    """The configuration with these values by key; what is not named has its default."""
    parts: dict[str, dict[str, Any]] = {section: {} for section in section_classes()}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        parts[section][name] = value
    built = {s: cls(**parts[s]) for s, cls in section_classes().items() if s}
    return RunConfig(**parts[""], **built)


# What other tools call our settings; keys are compared in lower case and without "-" and "_".
OTHER_NAMES = {
    "lr": "optim.base_lr",
    "learningrate": "optim.base_lr",
    "wd": "optim.weight_decay",
    "l2": "optim.weight_decay",
    "optimizer": "optim.name",
    "opt": "optim.name",
    "scheduler": "optim.schedule",
    "gradclip": "optim.clip_norm",
    "maxnorm": "optim.clip_norm",
    "maxgradnorm": "optim.clip_norm",
    "ema": "optim.ema_decay",
    "warmup": "optim.warmup_epochs",
    "batchsize": "train.global_batch",
    "batch": "train.global_batch",
    "numepochs": "train.epochs",
    "maxepochs": "train.epochs",
    "maxtime": "train.max_minutes",
    "earlystopping": "train.patience",
    "smoothing": "train.label_smoothing",
    "gpus": "parallel.ranks",
    "devices": "parallel.ranks",
    "numgpus": "parallel.ranks",
    "worldsize": "parallel.ranks",
    "nprocpernode": "parallel.ranks",
    "numprocesses": "parallel.ranks",
    "accelerator": "device",
    "amp": "precision.dtype",
    "mixedprecision": "precision.dtype",
    "dataset": "data.source",
    "datapath": "data.source",
    "dataroot": "data.source",
    "numworkers": "data.workers",
    "arch": "model.name",
    "architecture": "model.name",
    "backbone": "model.name",
    "output": "runs",
    "outputdir": "runs",
    "logdir": "runs",
}


def suggest(key: str) -> str:
    """The hint for a key that is none: the nearest right one, in its own section or another."""
    near = near_keys(key)
    if near:
        return f"did you mean {' or '.join(near)}?"
    section = key.partition(".")[0]
    if section in section_names():
        names = [s.name for s in settings().values() if s.section == section]
        return f"settings of [{section}]: {', '.join(names)}"
    return "`paceline config` lists every setting"


def near_keys(key: str) -> list[str]:
    """The settings that a wrong key most likely means; more than one only for equal names."""
    section, _, name = key.rpartition(".")
    exact = same_named(name)
    if exact:
        return exact
    siblings = {s.name: k for k, s in settings().items() if s.section == section}
    everyone = {s.name: k for k, s in settings().items()}
    for found in (
        _closest(name, siblings, 0.75) if section else None,
        _closest(key, {k: k for k in settings()}, 0.8),
        _closest(name, everyone, 0.75),
        _closest(name, siblings, 0.6) if section else None,
    ):
        if found:
            return [found]
    return []


def same_named(name: str) -> list[str]:
    """The settings of exactly this name, or the one that other tools call so."""
    found = [key for key, setting in settings().items() if setting.name == name]
    other = OTHER_NAMES.get(name.lower().replace("_", "").replace("-", ""))
    return found or ([other] if other else [])


def suggest_section(name: str) -> str:
    """The hint for a section that is none."""
    sections = section_names()
    near = _closest(name, {section: section for section in sections}, 0.6)
    if near:
        return f"did you mean [{near}]?"
    return f"sections: {', '.join(sections)}"


def _closest(name: str, known: Mapping[str, str], cutoff: float) -> str | None:
    names: Sequence[str] = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return known[names[0]] if names else None
