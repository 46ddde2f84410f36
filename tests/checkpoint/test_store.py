"""What a run sees of saving on one rank: values, state, timing, names on disk, what is kept."""

from __future__ import annotations

import os
import random
import resource
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from paceline.checkpoint import (
    PHASES,
    SaveReport,
    Store,
    best_candidate,
    candidates,
    newest_whole,
    open_checkpoint,
)
from paceline.errors import UserError
from tests.checkpoint.helpers import (
    assert_holds,
    assert_same,
    bits,
    save_one,
    state_of,
    step_names,
    tensors_of,
)
from tests.ranks import run_ranks

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def all_kinds() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32]
    kinds += [torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
    kinds += [torch.float8_e4m3fn, torch.float8_e5m2, torch.bool]
    tensors = {f"kind/{dtype}": (wide * 3).abs().to(dtype) for dtype in kinds}
    tied = torch.randn(4, 4, generator=generator)
    return tensors | {
        "tied/a": tied,
        "tied/b": tied,
        "tied/view": tied[1:3, 2:],
        "transposed": wide.t(),
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "zero_dims": torch.tensor(7, dtype=torch.int64),
        "zero_dims_bf16": torch.tensor(0.3, dtype=torch.bfloat16),
        "empty": torch.empty(0, dtype=torch.float16),
        "empty_rows": torch.empty(3, 0, 2),
        "specials": torch.tensor([float("nan"), float("inf"), -0.0]),
        'a name, with \u00e9 " \\ \n and ../..': torch.ones(1),
        "parameter": nn.Parameter(torch.ones(2, 2)),
        "conjugate/negative": torch.randn(3, dtype=torch.complex64).conj().imag,
    }


@pytest.mark.parametrize("device", DEVICES)
def test_every_kind_of_tensor_comes_back_bit_by_bit(tmp_path: Path, device: str) -> None:
    tensors = {name: tensor.to(device) for name, tensor in all_kinds().items()}
    with Store(tmp_path / "checkpoints") as store:
        store.save(17, tensors, state_of(17))
    (report,) = store.finished()
    assert report.ok
    checkpoint = open_checkpoint(report.path)
    assert checkpoint.step == 17
    assert checkpoint.state == state_of(17)
    assert checkpoint.names() == list(tensors)
    assert_same(checkpoint.load(), tensors)
    assert checkpoint.shape("transposed") == (5, 6)
    assert checkpoint.dtype("zero_dims_bf16") == torch.bfloat16


def test_the_tensor_file_is_one_that_the_safetensors_library_reads(tmp_path: Path) -> None:
    path = save_one(tmp_path, 3)
    assert_same(load_file(path / "rank-0.safetensors"), tensors_of(3))


def test_read_cuts_out_a_box(tmp_path: Path) -> None:
    tensors = {"cube": torch.arange(4 * 5 * 6).reshape(4, 5, 6), "scalar": torch.tensor(2.5)}
    with Store(tmp_path, background=False) as store:
        store.save(1, tensors, {})
    checkpoint = open_checkpoint(tmp_path / "step-00000001")
    for box in [
        (slice(1, 3),),
        (slice(None), slice(2, 99), slice(-2, None)),
        (slice(2, 2),),
        (slice(3, 1), slice(0, 1)),
        (),
    ]:
        assert bits(checkpoint.read("cube", box)) == bits(tensors["cube"][box])
    assert checkpoint.read("scalar", ()) == 2.5
    with pytest.raises(ValueError, match="step 2"):
        checkpoint.read("cube", (slice(0, 4, 2),))
    with pytest.raises(ValueError, match="4 slices"):
        checkpoint.read("cube", (slice(None),) * 4)
    with pytest.raises(UserError, match=r"no tensor 'cub'\n  hint: did you mean 'cube'"):
        checkpoint.read("cub")


def test_what_is_read_belongs_to_the_reader(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save_one(tmp_path, 1))
    checkpoint.read("model/weight").zero_()
    assert_same(checkpoint.load(), tensors_of(1))


def test_saving_changes_neither_tensors_nor_generators(tmp_path: Path) -> None:
    def generators() -> tuple[bytes, bytes, object]:
        numpy = np.random.get_state(legacy=True)[1].tobytes()  # type: ignore[index]
        return torch.get_rng_state().numpy().tobytes(), numpy, random.getstate()

    tensors = all_kinds()
    before = {name: bits(tensor) for name, tensor in tensors.items()}
    drawn = generators()
    save_one(tmp_path, 1, 2)
    with Store(tmp_path) as store:
        store.save(3, tensors, {})
    assert generators() == drawn
    assert {name: bits(tensor) for name, tensor in tensors.items()} == before
    assert tensors["parameter"].requires_grad


@pytest.mark.parametrize("device", DEVICES)
def test_a_background_save_does_not_hold_up_training(tmp_path: Path, device: str) -> None:
    release = threading.Event()

    def block(phase: str) -> None:
        if phase == "write":
            release.wait(30)

    store = Store(tmp_path, on_phase=block)
    weight = torch.zeros(1000, device=device)
    store.save(1, {"weight": weight}, {})
    weight.fill_(1)  # training goes on in the same memory
    assert store.finished() == []
    assert candidates(tmp_path) == []
    threading.Timer(0.2, release.set).start()
    began = time.perf_counter()
    store.save(2, {"weight": weight}, {})  # waits for the first
    assert time.perf_counter() - began > 0.15
    weight.fill_(2)
    store.close()
    assert [(report.step, report.ok) for report in store.finished()] == [(1, True), (2, True)]
    assert store.finished() == []
    for step in (1, 2):
        checkpoint = open_checkpoint(tmp_path / f"step-{step:08d}")
        assert torch.equal(checkpoint.read("weight"), torch.full((1000,), step - 1.0))
    assert not [thread for thread in threading.enumerate() if "checkpoint" in thread.name]


def test_the_report_says_where_how_long_and_how_much(tmp_path: Path) -> None:
    with Store(tmp_path / "checkpoints", background=False) as store:
        store.save(5, tensors_of(5), state_of(5))
    path = tmp_path / "checkpoints" / "step-00000005"
    num_bytes = sum(file.stat().st_size for file in path.iterdir())
    (report,) = store.finished()
    assert 0 < report.seconds < 30
    assert report == SaveReport(5, path, report.seconds, num_bytes, ok=True, error=None)


def test_phases_come_in_their_order(tmp_path: Path) -> None:
    seen: list[str] = []
    save_one(tmp_path, 1, keep_last=1)
    save_one(tmp_path, 2, keep_last=1, on_phase=seen.append)
    assert tuple(seen) == PHASES


def test_files_have_the_modes_that_the_umask_leaves(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        path = save_one(tmp_path / "new", 1)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o640}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_an_error_of_the_background_thread_reaches_the_caller(
    tmp_path: Path, error: type[BaseException]
) -> None:
    save_one(tmp_path, 1)
    faults = iter([error()])

    def fail(phase: str) -> None:
        if phase == "writing":
            for fault in faults:
                raise fault

    store = Store(tmp_path, on_phase=fail)
    store.save(2, tensors_of(2), state_of(2))
    while not store._thread or store._thread.is_alive():
        time.sleep(0.001)
    with pytest.raises(error):
        store.finished()
    (report,) = store.finished()
    assert not report.ok
    assert f"step 2 was not saved: rank 0: {error.__name__}" in str(report.error)
    assert step_names(tmp_path) == ["step-00000001"]
    store.save(3, tensors_of(3), state_of(3))  # and the store is as good as before
    store.close()
    assert_holds(tmp_path / "step-00000003", 3)


@pytest.mark.parametrize(
    ("tensors", "state", "message"),
    [
        ({"a": torch.zeros(2, dtype=torch.complex64)}, {}, "'a' has the dtype torch.complex64"),
        ({"a": torch.zeros(2, 2).to_sparse()}, {}, "'a' has the layout torch.sparse_coo"),
        ({"rank-1/a": torch.zeros(2)}, {}, "given to rank 0, but belongs to rank 1"),
        ({}, {"best": float("nan")}, "the state of step 4 is not plain JSON"),
        ({}, {"path": Path("a")}, "the state of step 4 is not plain JSON"),
    ],
)
def test_what_cannot_be_saved_is_refused_at_the_call(
    tmp_path: Path, tensors: dict[str, Tensor], state: dict[str, object], message: str
) -> None:
    store = Store(tmp_path)
    with pytest.raises(ValueError, match=message):
        store.save(4, tensors, state)
    assert step_names(tmp_path) == []


def test_a_step_saved_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    whole: list[str] = []

    def look(phase: str) -> None:
        path, passed_over = newest_whole(tmp_path)
        assert path is not None
        assert passed_over == []
        whole.append(f"{phase} {open_checkpoint(path).state['number']}")
        if phase == "removing":  # what is about to be deleted no longer looks complete
            assert candidates(tmp_path) == [path]

    with Store(tmp_path, background=False) as store:
        store.save(7, tensors_of(7), {"number": 1}, best=True)
    with Store(tmp_path, background=False, on_phase=look) as store:
        store.save(7, tensors_of(7), {"number": 2})
    assert [report.path.name for report in store.finished()] == ["step-00000007"]
    assert step_names(tmp_path) == ["step-00000007"]
    assert whole == [
        "snapshot 1",
        "write 1",
        "writing 1",
        "rename 1",
        "renamed 2",
        "removing 2",
        "prune 2",
    ]
    assert best_candidate(tmp_path) == tmp_path / "step-00000007"  # it is still the best step


def test_the_last_ones_and_the_best_are_kept_over_restarts(tmp_path: Path) -> None:
    for step in range(1, 7):
        with Store(tmp_path, keep_last=2, background=False) as store:  # a new one each time
            store.save(step, tensors_of(step), state_of(step), best=step in (1, 3))
    assert step_names(tmp_path) == ["step-00000003", "step-00000005", "step-00000006"]
    assert best_candidate(tmp_path) == tmp_path / "step-00000003"
    with Store(tmp_path, keep_last=1, keep_best=False, background=False) as store:
        store.save(7, tensors_of(7), state_of(7))
    assert step_names(tmp_path) == ["step-00000007"]
    assert best_candidate(tmp_path) is None


def test_after_going_back_the_newest_is_the_one_saved_last(tmp_path: Path) -> None:
    save_one(tmp_path, 10, 20, 30, keep_last=3)
    save_one(tmp_path, 12, keep_last=3)  # the run went back to step 10
    assert [path.name for path in candidates(tmp_path)] == [
        "step-00000012",
        "step-00000030",
        "step-00000020",
    ]
    assert newest_whole(tmp_path) == (tmp_path / "step-00000012", [])


def test_what_a_killed_run_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    save_one(tmp_path, 1)
    for name in (".step-00000002-partial-0aff", ".step-00000001-removed-0aff", "mine", ".step"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    Store(tmp_path)
    assert step_names(tmp_path) == [".step", "mine", "step-00000001"]


def test_only_complete_folders_are_candidates(tmp_path: Path) -> None:
    path = save_one(tmp_path, 1)
    path.rename(tmp_path / ".step-00000001-partial-00")
    (tmp_path / "step-00000002").write_text("a file")
    (tmp_path / "step-2").mkdir()
    (tmp_path / "step-00000003").symlink_to(tmp_path)
    assert candidates(tmp_path) == []
    assert candidates(tmp_path / "nowhere") == []
    assert newest_whole(tmp_path / "nowhere") == (None, [])


def test_a_folder_that_cannot_hold_checkpoints_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot hold checkpoints: Not a directory"):
        Store(tmp_path / "file" / "checkpoints")


def read_four_rows(path: Path) -> tuple[float, int]:
    def peak_bytes() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

    open_checkpoint(path)  # loads what is loaded on first use
    before = peak_bytes()
    rows = open_checkpoint(path).read("big", (slice(64, 68),))
    return rows.sum().item(), peak_bytes() - before


def test_a_slice_is_read_without_the_rest(tmp_path: Path) -> None:
    with Store(tmp_path, background=False) as store:
        store.save(1, {"big": torch.ones(128, 1 << 17)}, {})  # 64 MiB
    ((total, grown_bytes),) = run_ranks(read_four_rows, 1, tmp_path / "step-00000001")
    assert total == 4 << 17
    assert grown_bytes < 16 << 20  # the rows are 2 MiB


def test_a_process_ends_at_once_with_a_save_under_way(tmp_path: Path) -> None:
    code = """
import sys, time, torch
from pathlib import Path
from paceline.checkpoint import Store
began = []
def block(phase):
    if phase == "writing":
        began.append(1)
        time.sleep(1e6)
store = Store(Path(sys.argv[1]), on_phase=block)
store.save(1, {"a": torch.ones(3)}, {})
while not began:
    time.sleep(0.01)
sys.exit(7)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (7, "")
    assert candidates(tmp_path) == []
