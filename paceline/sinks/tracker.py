"""What a tracker is to the courier that serves it, and the trackers by name."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from paceline.config.schema import RunConfig
from paceline.errors import UserError
from paceline.records.folder import RunFolder
from paceline.sinks.feed import Point


class Tracker(Protocol):
    """Where points go. Every method may raise what it likes: the courier begins anew a little later.

    rewrites: what was sent before is thrown away by `begin`, so that all is sent again. Otherwise the tracker
    keeps what it has, and gets only what it does not have yet. To be asked after `begin`.
    """

    @property
    def rewrites(self) -> bool: ...

    def begin(self, run_id: str | None) -> str:
        """Opens the run there, a new one for None; returns the name that the tracker knows it by."""

    def send(self, points: Sequence[Point]) -> None:
        """Returns when the points will outlive this process."""

    def show(self, picture: Path) -> None:
        """Takes the picture of the model's inputs, a PNG file."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """The run has ended; result: what result.json says, empty where there is none."""

    def close(self) -> None:
        """Lets go of a tracker that failed, without raising."""


class Entry(NamedTuple):
    """Where a tracker lives, and what must be installed for it."""

    module: str
    name: str
    package: str
    help: str


TRACKERS = {
    "tensorboard": Entry(
        "paceline.sinks.tensorboard", "TensorBoard", "tensorboard", "event files in the run folder"
    ),
    "mlflow": Entry("paceline.sinks.mlflow", "MLflow", "mlflow", "a run on an MLflow server"),
    "wandb": Entry("paceline.sinks.wandb", "WandB", "wandb", "a run at Weights & Biases"),
    "csv": Entry("paceline.sinks.tables", "Tables", "csv", "a table a kind of record"),
}


def check_installed(names: Iterable[str]) -> None:
    """Raises UserError where a tracker's package is missing."""
    for name in names:
        if importlib.util.find_spec(TRACKERS[name].package) is None:
            raise UserError(
                f"the sink {name} needs the package {TRACKERS[name].package}, which is not installed",
                f"pip install 'paceline[{name}]', or leave {name} out of records.sinks",
            )


def open_tracker(name: str, folder: RunFolder, config: RunConfig) -> Tracker:
    entry = TRACKERS[name]
    tracker: Tracker = getattr(importlib.import_module(entry.module), entry.name)(folder, config)
    return tracker


def target(folder: RunFolder, config: RunConfig, name: str) -> Path:
    """The folder that a tracker writes files into, if it does."""
    if not config.sinks.folder:
        return folder.path / name
    return Path(config.sinks.folder) / folder.path.absolute().name / name


def hyper_parameters(config: RunConfig) -> dict[str, Any]:
    """Every setting by its key, in values that all trackers take: text, numbers, true and false."""
    from paceline.config.keys import flatten
    from paceline.config.toml import write_value

    plain = (str, bool, int, float)
    return {k: v if isinstance(v, plain) else write_value(v) for k, v in flatten(config).items()}


def final_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in result.get("metrics", {}).items() if value is not None}
