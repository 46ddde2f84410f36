"""Weighted draws through whole runs: ranks and a resume change neither the ledger nor the weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from paceline.data.sampling import Sampling
from tests.loop.runs import NUM_SAMPLES, largest_difference, train_rank, weights
from tests.ranks import run_ranks


def ledger(folder: Path) -> list[list[int]]:
    """The samples of each step over all ranks; of two records of a step the later counts."""
    by_step: dict[int, list[int]] = {}
    for file in sorted((folder / "records").glob("rank-*.jsonl")):
        mine = {}
        for record in map(json.loads, file.read_text().splitlines()):
            if record["kind"] == "samples":
                mine[record["step"]] = record["indices"]
        for step, indices in mine.items():
            by_step.setdefault(step, []).extend(indices)
    return [by_step[step] for step in sorted(by_step)]


def test_ranks_and_a_resume_draw_the_same_samples(tmp_path: Path) -> None:
    drawn_by = np.arange(NUM_SAMPLES) % 4 / 4
    np.save(tmp_path / "weights.npy", drawn_by)
    sets: dict[str, Any] = {
        "data__sampling": "weighted",
        "data__sample_weights": str(tmp_path / "weights.npy"),
        "data__epoch_samples": 31,  # two steps and a tail of 7
        "records__samples": True,
        "checkpoint__every_steps": 2,
        "checkpoint__keep_last": 10,
    }
    train_rank(tmp_path / "one", sets)
    one = weights(tmp_path / "one")
    sampling = Sampling(NUM_SAMPLES, 31, drawn_by)
    expected = [
        sampling.epoch(0, epoch)[0][start : start + 12].tolist()
        for epoch, start in ((0, 0), (0, 12), (0, 24), (1, 0), (1, 12))
    ]
    assert ledger(tmp_path / "one") == expected

    for path in (tmp_path / "one" / "checkpoints").iterdir():
        if path.name != "step-00000002":
            shutil.rmtree(path)
    (tmp_path / "one" / "model.safetensors").unlink()
    for file in (tmp_path / "one" / "records").iterdir():
        file.unlink()
    run_ranks(train_rank, 3, tmp_path / "one", sets)
    assert ledger(tmp_path / "one") == expected[2:]
    assert largest_difference(weights(tmp_path / "one"), one) < 1e-9
