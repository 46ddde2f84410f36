"""Files that changed on disk: each is named with its fault, and the newest whole one is found."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.checkpoint import Store, candidates, newest_whole, open_checkpoint
from paceline.errors import UserError
from tests.checkpoint.helpers import assert_holds, save_one, state_of, step_names, tensors_of

FILES = ["manifest.json", "rank-0.safetensors", "state.json"]


@contextmanager
def flipped(path: Path, position: int, bit: int) -> Iterator[None]:
    """The file with one bit changed."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)
    yield
    data[position] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_in_every_file(tmp_path: Path, name: str) -> None:
    path = save_one(tmp_path, 1)
    size = (path / name).stat().st_size
    for position in range(0, size, 1 + size // 400):
        with flipped(path / name, position, position % 8):
            with pytest.raises(UserError) as caught:
                open_checkpoint(path)
            assert caught.value.what.startswith(f"{path / name} is damaged: ")
            assert caught.value.hint
    assert_holds(path, 1)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    os.truncate(path, 0)


def link_elsewhere(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (truncate, "is damaged: "),
        (lengthen, "is damaged: "),
        (empty, "is damaged: "),
        (Path.unlink, "is missing"),
        (link_elsewhere, "is damaged: it is not a regular file"),
        (become_a_pipe, "is damaged: it is not a regular file"),
        (become_a_folder, "is damaged: it is not a regular file"),
    ],
)
def test_a_file_that_is_not_what_it_was_is_named(
    tmp_path: Path, harm: Callable[[Path], object], reason: str, name: str, verify: bool
) -> None:
    path = save_one(tmp_path, 1)
    harm(path / name)
    with pytest.raises(UserError) as caught:
        open_checkpoint(path, verify=verify)
    assert caught.value.what.startswith(f"{path / name} {reason}")


def test_no_checkpoint_is_a_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", save_one(tmp_path, 1) / "state.json"):
        with pytest.raises(UserError, match="there is no checkpoint"):
            open_checkpoint(path)
    with pytest.raises(UserError, match=r"manifest\.json is missing"):
        open_checkpoint(tmp_path)


def test_resuming_passes_over_damaged_ones_and_names_them(tmp_path: Path) -> None:
    save_one(tmp_path, 1, 2, 3, 4, keep_last=4)
    (tmp_path / "step-00000004" / "manifest.json").write_text("{}")
    with flipped(tmp_path / "step-00000003" / "rank-0.safetensors", -1, 0):
        path, passed_over = newest_whole(tmp_path)
    assert path == tmp_path / "step-00000002"
    four, three = passed_over
    assert four == (
        f"{tmp_path}/step-00000004/manifest.json is damaged: it does not begin with its own sha256"
    )
    assert three == (
        f"{tmp_path}/step-00000003/rank-0.safetensors is damaged: "
        "its content does not match its sha256"
    )


def test_a_damaged_one_is_replaced_when_its_step_is_saved_again(tmp_path: Path) -> None:
    save_one(tmp_path, 1, 2)
    (tmp_path / "step-00000002" / "manifest.json").write_text("{}")
    assert save_one(tmp_path, 2) == tmp_path / "step-00000002"
    assert step_names(tmp_path) == ["step-00000001", "step-00000002"]
    assert_holds(tmp_path / "step-00000002", 2)


def test_pruning_leaves_what_it_cannot_read(tmp_path: Path) -> None:
    save_one(tmp_path, 1)
    manifest = tmp_path / "step-00000001" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2'))
    save_one(tmp_path, 2, 3, 4, keep_last=1)
    assert step_names(tmp_path) == ["step-00000001", "step-00000004"]


def test_an_open_checkpoint_can_be_read_after_it_was_removed(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save_one(tmp_path, 1))
    shutil.rmtree(checkpoint.path)
    assert checkpoint.load().keys() == tensors_of(1).keys()


# --- saving on a disk that fails


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("num_bytes", [0, 20, 500, 2000])
@pytest.mark.parametrize("background", [True, False])
def test_a_failed_write_is_reported_and_leaves_the_earlier_one(
    tmp_path: Path, num_bytes: int, background: bool
) -> None:
    save_one(tmp_path, 1)
    store = Store(tmp_path, background=background)
    with file_size_limit(num_bytes):
        store.save(2, tensors_of(2), state_of(2))
        store.wait()
    (report,) = store.finished()
    assert not report.ok
    assert report.path == tmp_path / "step-00000002"
    assert report.error == f"step 2 was not saved: rank 0: {os.strerror(errno.EFBIG)}"
    assert step_names(tmp_path) == ["step-00000001"]
    store.save(3, tensors_of(3), state_of(3))
    store.close()
    assert [path.name for path in candidates(tmp_path)] == ["step-00000003", "step-00000001"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB, where this process may mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this process may not mount a disk")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("free_kib", [0, 4, 8])  # one page for each of the three files
def test_a_full_disk_is_reported_and_leaves_the_earlier_one(
    small_disk: Path, free_kib: int
) -> None:
    folder = small_disk / "checkpoints"
    save_one(folder, 1)
    used = os.statvfs(small_disk)
    (small_disk / "data").write_bytes(b"x" * (used.f_bavail * used.f_bsize - (free_kib << 10)))
    with Store(folder) as store:
        store.save(2, tensors_of(2), state_of(2))
        store.wait()
        (report,) = store.finished()
        assert report.error == "step 2 was not saved: rank 0: No space left on device"
        assert step_names(folder) == ["step-00000001"]
        (small_disk / "data").unlink()
        store.save(3, tensors_of(3), state_of(3))
    assert store.finished()[0].ok
    assert_holds(folder / "step-00000001", 1)


def test_what_cannot_be_pruned_is_reported_and_the_new_one_is_whole(tmp_path: Path) -> None:
    save_one(tmp_path, 1)
    moved: list[Path] = []

    def interfere(phase: str) -> None:
        if phase == "removing":
            (aside,) = tmp_path.glob(".step-*-removed-*")
            moved.append(aside.rename(tmp_path / "moved"))

    with Store(tmp_path, keep_last=1, on_phase=interfere) as store:
        store.save(2, tensors_of(2), state_of(2))
    (report,) = store.finished()
    assert report.ok
    assert str(report.error).startswith("an older checkpoint could not be removed: No such file")
    assert_holds(tmp_path / "step-00000002", 2)
    shutil.rmtree(moved[0])
