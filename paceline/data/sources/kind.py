"""What a registered source is, and what opening one gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.config.schema import DataConfig
from paceline.data.sources.base import Source


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A training source and what it is judged by; notes are for the user to read."""

    train: Source
    evaluation: Source | None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A registered source.

    argument: what follows the colon, empty where nothing may. optional: whether it may be left out.
    open_evaluation: for `data.eval_source`, given the training source.
    downloads: opening it may fetch files, so one rank of a machine opens it before the others.
    """

    description: str
    open: Callable[[str, DataConfig], Opened]
    open_evaluation: Callable[[str, DataConfig, Source], Source | None]
    argument: str = ""
    optional: bool = False
    downloads: bool = False
