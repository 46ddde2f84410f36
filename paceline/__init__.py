"""Paceline trains a PyTorch model on every GPU you have; this is its Python interface.

Names are imported when they are first used, so that `import paceline` and every `--help` do
without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.api import inspect_data, train
    from paceline.config.load import load_config
    from paceline.config.schema import (
        CheckpointConfig,
        DataConfig,
        LaunchConfig,
        ModelConfig,
        OptimConfig,
        ParallelConfig,
        PrecisionConfig,
        RecordsConfig,
        RunConfig,
        SinksConfig,
        TrainConfig,
    )
    from paceline.data.batch import Batch
    from paceline.errors import DivergedError, PacelineError, RankFailedError, UserError
    from paceline.judging.run import evaluate, predict
    from paceline.models.measure import Metric
    from paceline.models.spec import ModelSpec, Sums
    from paceline.sinks.send import track

__version__ = "0.1.0"

_HOMES = {
    "paceline.api": ["train", "inspect_data"],
    "paceline.config.load": ["load_config"],
    "paceline.config.schema": [
        "RunConfig",
        "DataConfig",
        "ModelConfig",
        "TrainConfig",
        "OptimConfig",
        "ParallelConfig",
        "PrecisionConfig",
        "CheckpointConfig",
        "LaunchConfig",
        "RecordsConfig",
        "SinksConfig",
    ],
    "paceline.data.batch": ["Batch"],
    "paceline.judging.run": ["evaluate", "predict"],
    "paceline.models.measure": ["Metric"],
    "paceline.models.spec": ["ModelSpec", "Sums"],
    "paceline.sinks.send": ["track"],
    "paceline.errors": ["PacelineError", "UserError", "DivergedError", "RankFailedError"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Batch",
    "CheckpointConfig",
    "DataConfig",
    "DivergedError",
    "LaunchConfig",
    "Metric",
    "ModelConfig",
    "ModelSpec",
    "OptimConfig",
    "PacelineError",
    "ParallelConfig",
    "PrecisionConfig",
    "RankFailedError",
    "RecordsConfig",
    "RunConfig",
    "SinksConfig",
    "Sums",
    "TrainConfig",
    "UserError",
    "evaluate",
    "inspect_data",
    "load_config",
    "predict",
    "track",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
