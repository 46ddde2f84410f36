"""A run on an MLflow server: metrics, settings as parameters, the picture of the inputs as an artifact.

MLflow takes nothing back: of a step that was taken again it keeps what came first. The same point sent twice, by a
sidecar that was killed before it could write down that it had sent it, is one point to MLflow's database.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.config.schema import RunConfig
from paceline.records.folder import RunFolder
from paceline.sinks.feed import Point
from paceline.sinks.tracker import final_metrics, hyper_parameters

_MOST_METRICS = 1000  # that a server takes in one request
_MOST_PARAMETERS = 100
_ENDS = {"finished": "FINISHED", "stopped": "KILLED"}


class MLflow:
    rewrites = False

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self._folder, self._config = folder, config
        self._client: Any = None
        self._run_id = ""

    def begin(self, run_id: str | None) -> str:
        # By default the client tries for four minutes; here the courier tries again.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient

        self._client = MlflowClient(self._config.sinks.mlflow_uri or None)
        if run_id is None:
            name = self._folder.path.absolute().name
            created = self._client.create_run(self._experiment(), run_name=name)
            self._run_id = created.info.run_id
        else:
            self._run_id = run_id
            self._client.update_run(run_id, status="RUNNING")
        self._log_parameters()
        return self._run_id

    def send(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, round(point.time * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for i in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[i : i + _MOST_METRICS])

    def show(self, picture: Path) -> None:
        self._client.log_artifact(self._run_id, str(picture), "pictures")

    def finish(self, result: Mapping[str, Any]) -> None:
        step = result.get("step", 0)
        for name, value in final_metrics(result).items():
            self._client.log_metric(self._run_id, f"final/{name}", value, step=step)
        status = _ENDS.get(str(result.get("status")), "FAILED")
        self._client.set_terminated(self._run_id, status)

    def close(self) -> None:
        self._client = None

    def _experiment(self) -> str:
        name = self._config.sinks.mlflow_experiment
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)

    def _log_parameters(self) -> None:
        """MLflow refuses another value for a parameter: those of the first launch stay."""
        from mlflow.entities import Param

        known = self._client.get_run(self._run_id).data.params
        parameters = [
            Param(key, str(value))
            for key, value in hyper_parameters(self._config).items()
            if key not in known
        ]
        for i in range(0, len(parameters), _MOST_PARAMETERS):
            self._client.log_batch(self._run_id, params=parameters[i : i + _MOST_PARAMETERS])
