"""The ranks' output on the screen: merged, limited, harmless, without tracebacks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from paceline.ui.text import harmless
from tests.ui.test_terminal import STYLE, Shown


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    return Shown(tmp_path / "run", num_ranks=4)


def settle(shown: Shown) -> list[str]:
    shown.poll()
    shown.poll(1.5)
    return shown.lines()


def test_the_same_line_of_several_ranks_is_shown_once(shown: Shown) -> None:
    for rank in range(4):
        shown.run.log(rank, "everywhere\n")
    for rank in (0, 2, 3):
        shown.run.log(rank, "on three\n")
    shown.run.log(2, "on one\n")
    lines = [line for line in settle(shown) if line.startswith("[")]
    assert lines == ["[ranks 0-3] everywhere", "[ranks 0,2-3] on three", "[rank 2] on one"]


def test_ranks_that_write_a_moment_apart_are_merged(shown: Shown) -> None:
    for rank in range(4):
        shown.run.log(rank, "ready\n")
        shown.poll(0.2)
    assert [line for line in settle(shown) if "ready" in line] == ["[ranks 0-3] ready"]


def test_a_line_that_one_rank_writes_twice_is_shown_twice(shown: Shown) -> None:
    for rank in range(4):
        shown.run.log(rank, "again\nagain\n")
    assert [line for line in settle(shown) if "again" in line] == ["[ranks 0-3] again"] * 2


def test_a_flood_is_cut_and_counted(shown: Shown) -> None:
    shown.run.log(1, "".join(f"line {n}\n" for n in range(5321)))
    shown.poll()
    shown.poll(1.5)
    lines = shown.lines()
    assert sum(line.startswith("[rank 1] line") for line in lines) == 200
    assert "… 5,121 more lines in logs/rank-1.log" in lines


def test_a_flood_of_all_ranks_is_counted_once(shown: Shown) -> None:
    for rank in range(4):
        shown.run.log(rank, "".join(f"line {n}\n" for n in range(1000)))
    lines = settle(shown)
    assert sum(line.startswith("[ranks 0-3] line") for line in lines) == 200
    assert "… 3,200 more lines in the logs of ranks 0-3" in lines


def test_a_flood_that_goes_on_is_limited_and_reported_now_and_then(shown: Shown) -> None:
    for second in range(30):
        shown.run.log(0, "".join(f"{second}.{n}\n" for n in range(1000)))
        shown.poll(1.0)
    shown.view.close()
    lines = shown.lines()
    assert sum(line.startswith("[rank 0]") for line in lines) < 200 + 30 * 50
    reports = [line for line in lines if line.startswith("…")]
    assert 2 <= len(reports) <= 4
    hidden = sum(int(line.split()[1].replace(",", "")) for line in reports)
    assert hidden + sum(line.startswith("[rank 0]") for line in lines) == 30_000


@pytest.mark.parametrize("prefix", ["", "[rank2]: "])
def test_of_a_traceback_only_the_end_is_passed_on(shown: Shown, prefix: str) -> None:
    text = """\
before
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    main()
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
ValueError: [red]no image[/red]
after
"""
    shown.run.log(2, "".join(f"{prefix}{line}\n" for line in text.splitlines()))
    assert [line for line in settle(shown) if line.startswith("[")] == [
        "[rank 2] before",
        "[rank 2] ValueError: [red]no image[/red]  (traceback in logs/rank-2.log)",
        "[rank 2] after",
    ]


def test_what_ended_a_rank_is_left_to_the_launcher(shown: Shown) -> None:
    """It waits until the failure is written down, which ranks do before they print it."""
    failures = [
        {"type": "UserError", "what": "there is no folder 'x'", "hint": "name one"},
        {"type": "DistBackendError", "what": "connection closed", "hint": ""},
    ]
    for rank, failure in enumerate(failures):
        shown.run.folder.failure(0, rank).write_text(json.dumps(failure))
    shown.run.log(0, "there is no folder 'x'\n  hint: name one\nsomething else\n")
    trace = "Traceback (most recent call last):\n  File x\n"
    shown.run.log(1, f"{trace}torch.distributed.DistBackendError: connection closed\n")
    assert [line for line in settle(shown) if line.startswith("[")] == ["[rank 0] something else"]


def test_of_a_bar_that_redraws_itself_the_last_state_is_shown(shown: Shown) -> None:
    shown.run.log(0, "10%\r50%\r100%\r\n")
    assert "[rank 0] 100%" in settle(shown)


HOSTILE = {
    "colour": ("\x1b[31mred\x1b[0m", "red"),
    "clear": ("a\x1b[2J\x1b[Hb", "ab"),
    "title": ("a\x1b]0;owned\x07b", "ab"),
    "link": ("\x1b]8;;http://x\x1b\\click\x1b]8;;\x1b\\", "click"),
    "device control": ("a\x1bPq#0\x1b\\b", "ab"),
    "eight-bit": ("a\x9b2Jb\x9d0;t\x9cc", "abc"),
    "bell and backspace": ("a\x07\x08b", "a��b"),
    "half an escape": ("a\x1b", "a�"),
    "markup": ("[bold red]x[/] :smile:", "[bold red]x[/] :smile:"),
    "direction": ("a\u202eb\u2066c", "a�b�c"),
    "surrogate": ("a\ud800b", "a�b"),
    "tab": ("a\tb", "a    b"),
}


@pytest.mark.parametrize(("text", "expected"), HOSTILE.values(), ids=HOSTILE)
def test_foreign_text_has_no_power_over_the_terminal(text: str, expected: str) -> None:
    assert harmless(text) == expected


def test_hostile_names_and_lines_reach_the_screen_as_text(tmp_path: Path) -> None:
    shown = Shown(tmp_path / "run\x1b[2J", width=120)
    nasty = "x\x1b[2J\x1b]0;t\x07\r[red]y[/red]"
    shown.run.log(0, f"\x9b2J{nasty}\ud800".encode("utf-8", "replace").decode() + "\n")
    shown.run.start(model=nasty, device=nasty, strategy=nasty, precision=nasty, notes=[nasty])
    shown.run.record("warning", text=nasty + "\ud800")
    shown.run.record("note", text=nasty)
    shown.run.step(1, metrics={nasty: 0.5})
    shown.view.notice(nasty)
    shown.poll()
    shown.view.close()
    sent = STYLE.sub("", shown.file.getvalue()).replace("\r\x1b[2K", "")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", sent)
    assert "[red]y[/red]" in sent


def test_a_very_long_line_is_cut(shown: Shown) -> None:
    shown.run.log(0, "x" * 1_000_000 + "\nnext\n")
    lines = settle(shown)
    assert max(len(line) for line in lines) < 600
    assert "[rank 0] next" in lines


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path: Path) -> None:
    shown = Shown(tmp_path / "run")
    shown.run.folder.log(0).write_bytes(b"\xff\xfe ok\n")
    assert "[rank 0] �� ok" in settle(shown)
