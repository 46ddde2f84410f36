"""Files that are no configuration, by accident or by malice: each ends in one sentence, at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from paceline.config.load import load_config
from paceline.errors import UserError


def message_of(path: Path) -> str:
    start = time.monotonic()
    with pytest.raises(UserError) as caught:
        load_config(path)
    assert time.monotonic() - start < 5
    message = str(caught.value)
    assert len(message) < 400 + 3 * len(str(path))
    assert all(c.isprintable() or c == "\n" for c in message)
    return message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"x" * 100_000, "larger than 64 KiB"),
        (b"\x7fELF\0\0\0", "is not a text file"),
        (b"\xff\xfea\0", "UTF-16"),
        (b"seed = 1\nruns = 'caf\xe9'\n", "line 2 is not UTF-8 text (byte 0xe9)"),
        (b"a = " + b"[" * 50_000, "nested too deeply"),
        (b"a = " + b"{b=" * 20_000, "nested too deeply"),
        (b"[model.options]\na = " + b"[" * 40 + b"]" * 40, "nested more than 16 deep"),
        (b"a." * 30_000 + b"a = 1", "dots"),
        ((b"a." * 900 + b"a = 1\n") * 30, "is not valid TOML"),
        (b"seed = " + b"9" * 60_000, "an impossible value"),
        (b"day = 2024-13-45", "is not valid TOML"),
        (b'runs = "', "is not valid TOML"),
        (b'"' + b"k" * 60_000 + b'" = 1', "unknown setting"),
        (b"[model]\nname = '" + b"n" * 60_000, "is not valid TOML"),
        (b"device = '" + b"n" * 60_000 + b"'", "is not one of its choices"),
    ],
)
def test_hostile_content(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.toml"
    path.write_bytes(content)
    assert expected in message_of(path)


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").touch()
    assert f"did you mean {tmp_path}/experiment.toml?" in message_of(tmp_path / "experimnt.toml")
    assert "there is no file" in message_of(tmp_path / "nowhere" / "x.toml")
    assert "did you mean --set train.epochs=3?" in message_of(Path("train.epochs=3"))


def test_a_folder_names_the_file_inside(tmp_path: Path) -> None:
    assert "is a folder" in message_of(tmp_path)
    (tmp_path / "config.toml").touch()
    assert f"did you mean {tmp_path}/config.toml?" in message_of(tmp_path)


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in message_of(tmp_path / "pipe")
    assert "is not a regular file" in message_of(Path("/dev/zero"))


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert "File name too long" in message_of(tmp_path / ("x" * 300))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot be read" in message_of(tmp_path / "loop")
    assert "cannot be read" in message_of(Path("a\0b"))


def test_a_forbidden_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "secret.toml"
    path.touch(mode=0o000)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # root may read everything
    try:
        assert "Permission denied" in message_of(path)
    finally:
        if root:
            os.seteuid(0)


def test_other_formats_are_named(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text("train:\n  epochs: 3\n")
    assert "Paceline reads TOML" in message_of(path)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "code.toml"
    path.write_text(
        f'runs = "$(touch {tmp_path}/a)"\n[model]\nname = "os:system(\'touch {tmp_path}/b\')"\n'
        f"options = {{ __class__ = '!!python/object/apply:os.system [touch {tmp_path}/c]' }}\n"
    )
    config = load_config(path).config
    assert config.runs == f"$(touch {tmp_path}/a)"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["code.toml"]
