"""Stopping as asked: the step is finished, saved, and the run says that it can be resumed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch

from paceline.loop.setup import Objects
from paceline.loop.stopping import StopRequest, stop_on_signals
from paceline.loop.train import run
from paceline.parallel.launched import launched
from paceline.records.folder import RunFolder
from paceline.records.reader import follow
from tests.loop.runs import Net, Points, config_of, train_rank
from tests.ranks import run_ranks


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def stop_after(
    folder: Path, sets: dict[str, Any], rank_asked: int, seconds: float | None
) -> tuple[str, int]:
    """One rank is asked to stop; (status, step) as this rank saw it. seconds: after the first steps; None: before."""
    stop = StopRequest()
    me = launched()
    run_folder = RunFolder(folder)

    def ask(seconds: float) -> None:
        records = follow(run_folder.records(0))
        while not any(record["kind"] == "step" for record in records.poll()):
            time.sleep(0.05)
        time.sleep(seconds)
        stop.request("SIGTERM")

    if seconds is None and me is not None and me.rank == rank_asked:
        stop.request("SIGTERM")
    elif me is None or me.rank == rank_asked:
        threading.Thread(target=ask, args=[seconds], daemon=True).start()
    run_folder.create()
    objects = Objects(model=Net, data=Points(), eval_data=Points(num=13))
    config = config_of(**{"train__max_steps": 0, "train__epochs": 100_000} | sets)
    return run(run_folder, config, stop=stop, objects=objects), 0


def test_one_rank_asked_stops_all_after_the_same_step(tmp_path: Path) -> None:
    ends = run_ranks(stop_after, 2, tmp_path, {}, 1, 1.0)
    assert [status for status, _ in ends] == ["stopped", "stopped"]
    found = result(tmp_path)
    assert found["status"] == "stopped"
    assert found["reason"] == "SIGTERM"
    assert found["checkpoint"] == f"checkpoints/step-{found['step']:08}"
    ends_of_ranks = [
        json.loads((tmp_path / "records" / f"rank-{rank}.jsonl").read_text().splitlines()[-1])
        for rank in (0, 1)
    ]
    assert ends_of_ranks[0]["step"] == ends_of_ranks[1]["step"] == found["step"]


def test_max_minutes_saves_and_can_be_resumed(tmp_path: Path) -> None:
    status, _ = stop_after(tmp_path, {"train__max_minutes": 0.5 / 60}, 0, 60)
    assert status == "stopped"
    first = result(tmp_path)
    assert first["reason"] == "max_minutes"
    train_rank(tmp_path, {"train__max_steps": first["step"] + 2, "train__epochs": 100_000})
    assert result(tmp_path)["step"] == first["step"] + 2


def test_early_stopping_ends_the_run_for_good(tmp_path: Path) -> None:
    sets = {"train__patience": 2, "optim__base_lr": 0.0, "train__epochs": 50, "train__max_steps": 0}
    assert train_rank(tmp_path, sets) == "finished"
    found = result(tmp_path)
    assert found["epoch"] == 3  # the first evaluation is the best, two more are not better
    assert "2 evaluations" in found["reason"]
    assert (tmp_path / "model.safetensors").exists()


def test_a_target_ends_the_run_as_soon_as_it_is_reached(tmp_path: Path) -> None:
    sets = {"train__metric": "loss", "train__epochs": 50, "train__max_steps": 0}
    assert train_rank(tmp_path / "all", {**sets, "train__target": 1e9}) == "finished"
    found = result(tmp_path / "all")
    assert (found["epoch"], found["status"]) == (1, "finished")
    assert found["reason"].startswith("loss reached ")
    train_rank(tmp_path / "none", {**sets, "train__epochs": 2, "train__target": 1e-9})
    assert (result(tmp_path / "none")["epoch"], result(tmp_path / "none")["reason"]) == (2, "")


def test_a_stop_during_evaluation_does_not_wait_for_its_end(tmp_path: Path) -> None:
    class Slow(Points):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            time.sleep(0.05)
            return super().__getitem__(index)

    stop = StopRequest()
    folder = RunFolder(tmp_path)
    folder.create()
    threading.Timer(1.0, stop.request, ["SIGTERM"]).start()
    objects = Objects(model=Net, data=Points(num=12), eval_data=Slow(num=2000))
    began = time.monotonic()
    config = config_of(train__epochs=1, train__eval_batch=4)
    assert run(folder, config, stop=stop, objects=objects) == "stopped"
    assert time.monotonic() - began < 20
    found = result(tmp_path)
    assert (found["step"], found["epoch"]) == (1, 1.0)


def test_a_stop_while_ranks_start_begins_nothing(tmp_path: Path) -> None:
    assert [s for s, _ in run_ranks(stop_after, 2, tmp_path, {}, 0, None)] == ["stopped", "stopped"]
    assert result(tmp_path)["step"] == 0
    assert result(tmp_path)["checkpoint"] is None


def test_signals_ask_and_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = StopRequest()
    with stop_on_signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
    assert stop.reason == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before
