"""Records as they are written: valid JSON lines, whatever happens to the process or the disk."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.records import reader
from paceline.records.writer import RecordWriter


def lines(path: Path) -> list[dict[str, object]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_records_are_json_lines_with_kind_and_time(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    with RecordWriter(path) as writer:
        writer.write("step", step=1, loss=0.5, phases={"data": 0.1})
        writer.write("note", text='two\nlines, "quotes" and ünïcode')
    first, second = lines(path)
    assert (first["kind"], first["step"], first["phases"]) == ("step", 1, {"data": 0.1})
    assert isinstance(first["time"], float)
    assert second["text"] == 'two\nlines, "quotes" and ünïcode'


def test_nothing_reaches_the_file_before_a_flush(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    writer = RecordWriter(path)
    writer.write("step", step=1)
    assert not path.exists()
    writer.flush()
    assert len(lines(path)) == 1
    writer.close()


def test_a_writer_that_is_never_flushed_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    writer = RecordWriter(path)
    for step in range(3):
        writer.write("samples", step=step, indices=list(range(100_000)))
    assert len(lines(path)) >= 1
    writer.close()


def test_numbers_that_json_lacks_survive_the_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    with RecordWriter(path) as writer:
        writer.write("step", step=1, loss=float("nan"), metrics={"a": float("inf")}, text="NaN")
        writer.write("step", step=2, loss=np.float32("-inf"), norm=torch.tensor(float("nan")))
    assert [line["loss"] for line in lines(path)] == ["NaN", "-Infinity"]
    first, second = reader.read(path)
    assert first["loss"] != first["loss"]
    assert first["metrics"]["a"] == float("inf")
    assert first["text"] == "NaN"
    assert second["loss"] == float("-inf")


def test_numbers_of_numpy_and_torch_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    with RecordWriter(path) as writer:
        writer.write("samples", indices=np.arange(3), n=np.int64(3), x=torch.tensor(0.5), p=path)
    (line,) = lines(path)
    assert (line["indices"], line["n"], line["x"], line["p"]) == ([0, 1, 2], 3, 0.5, str(path))


def test_what_is_no_value_is_our_own_mistake(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="cannot hold a object"):
        RecordWriter(tmp_path / "r.jsonl").write("note", text=object())


def test_a_torn_line_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text('{"kind": "step", "step": 1}\n{"kind": "step", "st')
    with RecordWriter(path) as writer:
        writer.write("start", step=1)
    assert [(r["kind"], r["step"]) for r in reader.read(path)] == [("step", 1), ("start", 1)]


def test_threads_share_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"

    def work(writer: RecordWriter, thread: int) -> None:
        for i in range(200):
            writer.write("note", text=f"{thread} {i}")
            if i % 7 == 0:
                writer.flush()

    with RecordWriter(path) as writer:
        threads = [threading.Thread(target=work, args=(writer, n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({line["text"] for line in lines(path)}) == 800


def test_a_full_disk_warns_once_and_writing_resumes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    path = tmp_path / "rank-0.jsonl"
    path.symlink_to("/dev/full")
    writer = RecordWriter(path)
    for step in range(3):
        writer.write("step", step=step)
        writer.flush()
    warnings = capfd.readouterr().err
    assert warnings.count("\n") == 1
    assert "No space left on device" in warnings
    assert writer.dropped == 3
    path.unlink()
    writer.write("step", step=3)
    writer.close()
    warning, step = reader.read(path)
    assert warning["kind"] == "warning"
    assert warning["text"].startswith("3 records before this one were lost")
    assert step["step"] == 3


def test_a_line_that_the_disk_cut_short_is_left_behind(tmp_path: Path) -> None:
    """A file size limit writes a part of a line and then fails, as a disk does that fills up."""
    path = tmp_path / "rank-0.jsonl"
    script = """
        import resource, sys
        from pathlib import Path
        from paceline.records.writer import RecordWriter
        writer = RecordWriter(Path(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        for step in range(5):
            writer.write("step", step=step)
            writer.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        writer.write("end")
        writer.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.count("warning:") == 1
    assert [r["kind"] for r in reader.read(path)] == ["step", "warning", "end"]
