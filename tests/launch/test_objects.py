"""Objects on their way to the ranks: whole, private, and read by nobody else's wish."""

from __future__ import annotations

import os
import pickle
import stat
import threading
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.launch.objects import carried, read


def test_objects_arrive_and_leave_nothing() -> None:
    factor = 3
    with carried({"loss": lambda value: value * factor}) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert read(path)["loss"](2) == 6
    assert not path.exists()


def test_the_file_goes_even_if_the_launch_fails() -> None:
    with pytest.raises(RuntimeError), carried(1) as path:
        raise RuntimeError
    assert not path.exists()


def test_an_object_that_cannot_travel_is_a_users_error() -> None:
    with pytest.raises(UserError, match="cannot be sent to the ranks"), carried(threading.Lock()):
        pass


def test_a_file_that_others_could_have_written_is_not_read(tmp_path: Path) -> None:
    trap = tmp_path / "trap"

    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(trap),)

    path = tmp_path / "objects"
    path.write_bytes(pickle.dumps(Hostile()))
    for mode in (0o644, 0o660, 0o602):
        path.chmod(mode)
        with pytest.raises(UserError, match="is not a private file of this user"):
            read(path)
    assert not trap.exists()


def test_an_object_that_cannot_be_rebuilt_is_a_users_error(tmp_path: Path) -> None:
    path = tmp_path / "objects"
    path.write_bytes(b"cno_such_module\nThing\n.")
    path.chmod(0o600)
    with pytest.raises(UserError, match="cannot be rebuilt in a rank: ModuleNotFoundError"):
        read(path)
