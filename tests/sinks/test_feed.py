"""The points that trackers get: those that count, each once."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paceline.records.writer import RecordWriter
from paceline.sinks.feed import Feed
from tests.sinks.planted import plant, recorded, write_attempt, write_step


def test_steps_that_were_taken_again_are_given_once(tmp_path: Path) -> None:
    folder = plant(tmp_path / "r")
    feed = Feed(folder.records(0))
    points = feed.poll()
    for name, expected in recorded(folder).items():
        assert [(p.step, p.values[name]) for p in points if name in p.values] == expected
    assert not feed.rewound
    assert all("matrix" not in name for point in points for name in point.values)


def test_an_attempt_that_begins_later_rewinds(tmp_path: Path) -> None:
    folder = plant(tmp_path / "r")
    feed = Feed(folder.records(0))
    feed.poll()
    with RecordWriter(folder.records(0)) as records:
        write_step(records, 13, np.random.default_rng(0))
    assert [p.step for p in feed.poll()] == [13]
    write_attempt(folder, 13, 14)
    assert [p.step for p in feed.poll()] == [14]
    assert not feed.rewound
    write_attempt(folder, 10, 12)
    feed.poll()
    assert feed.rewound
    assert [p.step for p in Feed(folder.records(0)).poll() if p.kind == "step"] == [*range(1, 13)]
