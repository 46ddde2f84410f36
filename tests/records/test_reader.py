"""Records read back: while the file grows, after a kill, and after a resume."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.records.reader import LineTail, follow, latest, read, steps


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def step(number: int, **fields: object) -> str:
    return json.dumps({"kind": "step", "step": number, **fields}) + "\n"


def start(number: int) -> str:
    return json.dumps({"kind": "start", "step": number, "steps_per_epoch": 10}) + "\n"


def test_following_yields_each_record_once(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    follower = follow(path)
    assert follower.poll() == []
    append(path, step(1) + step(2))
    assert [r["step"] for r in follower.poll()] == [1, 2]
    assert follower.poll() == []
    append(path, step(3))
    assert [r["step"] for r in follower.poll()] == [3]


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    follower = follow(path)
    whole = step(1)
    append(path, whole[:9])
    assert follower.poll() == []
    append(path, whole[9:])
    assert [r["step"] for r in follower.poll()] == [1]
    assert follower.torn == 0


def test_torn_and_foreign_lines_are_counted_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_bytes(
        step(1).encode() + b'{"kind": "st\n\n[1, 2]\n{"no": "kind"}\n\xff\xfe\n' + step(2).encode()
    )
    follower = follow(path)
    assert [r["step"] for r in follower.poll()] == [1, 2]
    assert follower.torn == 4


def test_following_survives_truncation_and_replacement(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    append(path, step(1) + step(2))
    follower = follow(path)
    follower.poll()
    path.write_text(step(7))
    assert [r["step"] for r in follower.poll()] == [7]
    new = tmp_path / "new"
    new.write_text(step(8) + step(9))
    new.replace(path)
    assert [r["step"] for r in follower.poll()] == [8, 9]
    path.unlink()
    assert follower.poll() == []


def test_following_can_skip_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    append(path, step(1))
    follower = follow(path, from_start=False)
    append(path, step(2))
    assert [r["step"] for r in follower.poll()] == [2]


def test_a_file_without_line_ends_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    tail = LineTail(path, max_line_bytes=10)
    for _ in range(5):
        append(path, "x" * 1000)
        assert tail.poll() == []
    append(path, "\nnext\n")
    assert tail.poll() == [b"x" * 10, b"next"]


def test_reading_a_file_larger_than_one_poll(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text("".join(step(n, pad="x" * 100_000) for n in range(120)))
    assert [r["step"] for r in read(path)] == list(range(120))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no records at .*rank-5"):
        read(tmp_path / "rank-5.jsonl")


def test_after_a_resume_the_later_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    first = start(0) + "".join(step(n, loss="first") for n in range(1, 6))
    path.write_text(first + start(3) + step(4, loss="second"))
    kept = [(r["step"], r["loss"]) for r in steps(read(path))]
    assert kept == [(1, "first"), (2, "first"), (3, "first"), (4, "second")]


def test_a_resume_also_voids_later_epochs_and_evaluations(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    records = [
        {"kind": kind, "epoch": epoch, "step": 10 * epoch} | extra
        for epoch, extra in [(1, {}), (2, {"old": True})]
        for kind in ("eval", "epoch")
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in records) + start(15))
    assert [r["epoch"] for r in latest(read(path), "eval")] == [1]
    assert [r["epoch"] for r in latest(read(path), "epoch")] == [1]


def test_reading_needs_neither_torch_nor_numpy(tmp_path: Path) -> None:
    code = "import sys, paceline.records.reader; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr
