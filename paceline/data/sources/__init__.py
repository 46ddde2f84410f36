"""Where samples come from, by name. A new source is a file here and a line in `SOURCES`."""

from __future__ import annotations

from paceline.config.schema import DataConfig
from paceline.data.sources import csv_files, huggingface, tokens, torchvision_sets
from paceline.data.sources.base import ArraySource, BadSample, Normalization, Source, VectorSource
from paceline.data.sources.digits import open_digits
from paceline.data.sources.functions import from_dataset, open_function
from paceline.data.sources.imagefolder import open_evaluation_folder, open_folder
from paceline.data.sources.kind import Kind, Opened
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
    "check_sources",
    "from_dataset",
    "may_download",
    "open_evaluation",
    "open_sources",
]


def _open_digits(argument: str, config: DataConfig) -> Opened:
    train, test = open_digits(config.image_size)
    return Opened(train=train, evaluation=test)


def _open_synthetic(argument: str, config: DataConfig) -> Opened:
    size, n = config.image_size or 32, config.num_samples
    train = Synthetic(n, config.num_classes, size)
    return Opened(train=train, evaluation=Synthetic(max(1, n // 8), config.num_classes, size, n))


SOURCES = {
    "digits": Kind(
        description="1,797 handwritten digits of 8 x 8 pixels that scikit-learn ships",
        open=_open_digits,
        open_evaluation=lambda argument, config, train: _open_digits("", config).evaluation,
    ),
    "synthetic": Kind(
        description="made-up images of data.image_size, data.num_samples and data.num_classes",
        open=_open_synthetic,
        open_evaluation=lambda argument, config, train: _open_synthetic("", config).evaluation,
    ),
    "imagefolder": Kind(
        description="images in train/CLASS/ and val/CLASS/, or in CLASS/ directly",
        argument="PATH",
        open=open_folder,
        open_evaluation=open_evaluation_folder,
    ),
    "csv": Kind(
        description="images by a CSV file of paths and labels",
        argument="PATH",
        open=csv_files.open_csv,
        open_evaluation=csv_files.open_evaluation_csv,
    ),
    "tokens": Kind(
        description="sequences of a memory-mapped file of token ids",
        argument="PATH",
        open=tokens.open_tokens,
        open_evaluation=tokens.open_evaluation_tokens,
    ),
    "hf": Kind(
        description="a Hugging Face data set, by name or from a folder of save_to_disk",
        argument="PATH_OR_NAME",
        downloads=True,
        open=huggingface.open_named,
        open_evaluation=huggingface.open_evaluation_named,
    ),
    **torchvision_sets.kinds(),
}


def may_download(config: DataConfig) -> bool:
    """Whether opening the sources may fetch files: then one rank of a machine does it before the others."""
    names = {spec.partition(":")[0] for spec in (config.source, config.eval_source)}
    return any(SOURCES[name].downloads for name in names if name in SOURCES)


def check_sources(config: DataConfig) -> None:
    """Raises UserError for names that no source can have; opens nothing."""
    name, _ = _parse(config.source, "data.source")
    if config.columns and name not in ("csv", "hf"):
        raise UserError(
            f"data.columns is set, and data.source = {config.source!r} has no columns",
            "leave it out, or use csv:PATH or hf:NAME",
        )
    if config.eval_source:
        _parse(config.eval_source, "data.eval_source")


def open_sources(config: DataConfig, seed: int) -> Opened:
    """The sources that the settings name."""
    check_sources(config)
    name, argument = _parse(config.source, "data.source")
    if name in SOURCES:
        opened = SOURCES[name].open(argument, config)
    else:
        train, evaluation = open_function(config.source, config, seed)
        opened = Opened(train=train, evaluation=evaluation)
    if not config.eval_source:
        return opened
    evaluation = open_evaluation(config, seed, opened.train)
    return Opened(train=opened.train, evaluation=evaluation, notes=opened.notes)


def open_evaluation(config: DataConfig, seed: int, train: Source) -> Source:
    """What `data.eval_source` names, with the classes of the training set."""
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
    known = [_written(n, k) for n, k in SOURCES.items()]
    near = nearest(name, list(SOURCES))
    if near.startswith("known"):
        near = f"known: {', '.join(known)}, module:function"
    raise UserError(f"{setting} = {spec!r} is no known source", near)


def _written(name: str, kind: Kind) -> str:
    argument = f"[:{kind.argument}]" if kind.optional else f":{kind.argument}"
    return name + (argument if kind.argument else "")


def _module_like(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
