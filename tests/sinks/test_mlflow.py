"""A real MLflow server: down, up, killed in between, and a run that goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline
from paceline.config.load import load_config
from paceline.records.folder import RunFolder
from paceline.sinks import courier
from paceline.sinks.send import serve
from tests.ranks import free_port
from tests.sinks.planted import plant, recorded, write_attempt


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """A port, free until `start` is called with it."""
    started: list[subprocess.Popen[bytes]] = []
    start.processes = started  # type: ignore[attr-defined]
    yield free_port()
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start(port: int, folder: Path) -> None:
    with open(folder / "mlflow.log", "wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
                "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1",
                "--artifacts-destination", str(folder / "artifacts"),
            ],
            stdout=log, stderr=log, start_new_session=True, cwd=folder,
        )  # fmt: skip
    start.processes.append(process)  # type: ignore[attr-defined]
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert time.monotonic() < deadline and process.poll() is None, log.name
            time.sleep(0.2)


@pytest.mark.slow
def test_a_server_that_is_down_comes_back(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "POLL_S", 0.05)
    monkeypatch.setattr(courier, "LONGEST_WAIT_S", 0.2)
    uri = f"http://127.0.0.1:{port}"
    folder = plant(tmp_path / "r", sinks__mlflow_uri=uri)
    said: list[str] = []
    ended = threading.Event()
    config = load_config(folder.config).config
    server = threading.Thread(target=serve, args=(folder, config, ["mlflow"], ended, said.append))
    server.start()
    while not said:
        time.sleep(0.05)
    start(port, tmp_path)
    while len(said) < 2:
        time.sleep(0.05)
    ended.set()
    server.join()
    assert "mlflow does not take the records" in said[0] and "training goes on" in said[0]
    assert said[1:] == ["mlflow is back, and has everything"]
    run_id = check(folder, uri, through=12)

    # Killed after it had sent, before it wrote that down: the same points again are no other points.
    state = json.loads(folder.sent("mlflow").read_text())
    folder.sent("mlflow").write_text(json.dumps({**state, "sent": {"step": 3}}))
    # And the run went on from a checkpoint: MLflow keeps the steps that it has.
    before = recorded(folder)
    write_attempt(folder, 9, 14)
    state["sent"] = {"step": 12, "eval": 10, "epoch": 2}
    folder.sent("mlflow").write_text(json.dumps(state))
    assert paceline.track(folder.path, ["mlflow"], quiet=True) == []
    assert check(folder, uri, through=14, first=before) == run_id


def check(
    folder: RunFolder,
    uri: str,
    *,
    through: int,
    first: dict[str, list[tuple[int, float]]] | None = None,
) -> str:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("paceline")
    (run,) = client.search_runs([experiment.experiment_id])
    for name, expected in recorded(folder).items():
        had = (first or {}).get(name, [])
        known = {step for step, _ in had}
        expected = had + [pair for pair in expected if pair[0] not in known]
        found = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
        assert sorted(found) == expected, name
    assert max(m.step for m in client.get_metric_history(run.info.run_id, "lr")) == through
    assert run.info.status == "FINISHED"
    assert run.data.params["optim.name"] == "sgd"
    assert run.data.metrics["final/accuracy"] == 0.75
    assert [f.path for f in client.list_artifacts(run.info.run_id, "pictures")] == [
        "pictures/inputs.png"
    ]
    return str(run.info.run_id)
