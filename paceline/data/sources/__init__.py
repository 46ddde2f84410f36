"""Where samples come from, by name. A new source is a file here and a line in `SOURCES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.config.schema import DataConfig
from paceline.data.sources.base import ArraySource, BadSample, Normalization, Source, VectorSource
from paceline.data.sources.digits import open_digits
from paceline.data.sources.functions import from_dataset, open_function
from paceline.data.sources.imagefolder import open_evaluation_folder, open_folder
from paceline.data.sources.synthetic import Synthetic
from paceline.errors import UserError, nearest

__all__ = [
    "SOURCES",
    "ArraySource",
    "BadSample",
    "Normalization",
    "Opened",
    "Source",
    "VectorSource",
    "from_dataset",
    "open_sources",
]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A training source and what it is judged by; notes are for the user to read."""

    train: Source
    evaluation: Source | None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A registered source. argument: what follows the colon, empty where nothing may."""

    description: str
    argument: str
    open: Callable[[str, DataConfig], Opened]
    open_evaluation: Callable[[str, DataConfig, Source], Source | None]


def _open_digits(argument: str, config: DataConfig) -> Opened:
    train, test = open_digits(config.image_size)
    return Opened(train=train, evaluation=test)


def _open_synthetic(argument: str, config: DataConfig) -> Opened:
    size, n = config.image_size or 32, config.num_samples
    train = Synthetic(n, config.num_classes, size)
    return Opened(train=train, evaluation=Synthetic(max(1, n // 8), config.num_classes, size, n))


def _open_folder(path: str, config: DataConfig) -> Opened:
    _check_image_size(path, config)
    whole = config.augment in ("auto", "resized-crop-flip")
    train, evaluation, notes = open_folder(path, config.image_size, whole)
    return Opened(train=train, evaluation=evaluation, notes=notes)


def _open_evaluation_folder(path: str, config: DataConfig, train: Source) -> Source:
    _check_image_size(path, config)
    return open_evaluation_folder(path, config.image_size, train)


def _check_image_size(path: str, config: DataConfig) -> None:
    if config.image_size == 0:
        raise UserError(
            f"imagefolder:{path} has images of many sizes, and data.image_size is not set",
            "set data.image_size, for example 224",
        )


SOURCES = {
    "digits": Kind(
        description="1,797 handwritten digits of 8 x 8 pixels that scikit-learn ships",
        argument="",
        open=_open_digits,
        open_evaluation=lambda argument, config, train: _open_digits("", config).evaluation,
    ),
    "synthetic": Kind(
        description="made-up images of data.image_size, data.num_samples and data.num_classes",
        argument="",
        open=_open_synthetic,
        open_evaluation=lambda argument, config, train: _open_synthetic("", config).evaluation,
    ),
    "imagefolder": Kind(
        description="images in train/CLASS/ and val/CLASS/, or in CLASS/ directly",
        argument="PATH",
        open=_open_folder,
        open_evaluation=_open_evaluation_folder,
    ),
}


def open_sources(config: DataConfig, seed: int) -> Opened:
    """The sources that the settings name."""
    name, argument = _parse(config.source, "data.source")
    if name in SOURCES:
        opened = SOURCES[name].open(argument, config)
    else:
        train, evaluation = open_function(config.source, config, seed)
        opened = Opened(train=train, evaluation=evaluation)
    if not config.eval_source:
        return opened
    evaluation = _open_evaluation(config, seed, opened.train)
    return Opened(train=opened.train, evaluation=evaluation, notes=opened.notes)


def _open_evaluation(config: DataConfig, seed: int, train: Source) -> Source:
    name, argument = _parse(config.eval_source, "data.eval_source")
    if name in SOURCES:
        evaluation = SOURCES[name].open_evaluation(argument, config, train)
        assert evaluation is not None, f"{name} has no evaluation source"
        return evaluation
    first, second = open_function(config.eval_source, config, seed)
    return first if second is None else second


def _parse(spec: str, setting: str) -> tuple[str, str]:
    """(name, argument) of `name:argument`; a name that is not registered is a module."""
    name, colon, argument = spec.partition(":")
    if name in SOURCES:
        kind = SOURCES[name]
        if argument and not kind.argument:
            raise UserError(f"{setting} = {spec!r}: {name} takes no argument", f"write {name!r}")
        return name, argument
    if colon and argument.replace(".", "_").isidentifier() and _module_like(name):
        return name, argument
    known = [n + (f":{k.argument}" if k.argument else "") for n, k in SOURCES.items()]
    near = nearest(name, list(SOURCES))
    if near.startswith("known"):
        near = f"known: {', '.join(known)}, module:function"
    raise UserError(f"{setting} = {spec!r} is no known source", near)


def _module_like(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
