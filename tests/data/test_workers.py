from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from paceline.config.schema import DataConfig
from paceline.data.bundle import load_data
from paceline.data.loader import Loader
from paceline.data.sources import Source, from_dataset
from paceline.data.workers import choose_workers
from paceline.errors import UserError
from tests.data.conftest import MakeFolder, truncate
from tests.data.datasets import Broken, Confined, Drawing, Locked, Process, Seeds, Unreadable
from tests.data.test_loader import real_rows


def loader(source: Source, **options: Any) -> Loader:
    return Loader(source, **{"seed": 3, "global_batch": 4, "workers": 2, **options})


def pids(rows: dict[int, Any]) -> set[int]:
    return {int.from_bytes(data["input"][:8], "little") for data, _ in rows.values()}


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_same_samples_whatever_loads_them(make_folder: MakeFolder) -> None:
    drawing = from_dataset(Drawing())
    config = DataConfig(source=f"imagefolder:{make_folder()}", image_size=8)
    photos = load_data(config, 0)
    for source, augment in ((photos.train, photos.augment), (drawing, None)):
        here = loader(source, augment=augment, workers=0)
        expected = real_rows(list(here.epoch(1)))
        for workers, count, start in ((1, 2, 0), (2, 1, 4)):
            rows: dict[int, Any] = {}
            for rank in range(count):
                ours = loader(
                    source, augment=augment, workers=workers, data_rank=rank, num_data_ranks=count
                )
                rows |= real_rows(list(ours.epoch(1, start)))
                ours.close()
            assert len(rows) == len(source) - start
            assert all(expected[index] == row for index, row in rows.items())


def test_processes_stay_for_epochs_and_evaluation_and_leave_the_rank_alone() -> None:
    source = from_dataset(Process())
    ours = loader(source, evaluation=source)
    before = torch.get_rng_state()
    first, second = (real_rows(list(ours.epoch(epoch))) for epoch in (0, 1))
    evaluated = {b.data["input"][0, 0].item() for b in ours.evaluation(3) if b is not None}
    assert torch.equal(torch.get_rng_state(), before)
    assert pids(first) == pids(second) == evaluated
    assert len(pids(first)) == 2
    assert os.getpid() not in pids(first)
    assert {data["input"][8:] for data, _ in first.values()} == {(1).to_bytes(8, "little")}
    ours.close()
    wait_until(lambda: not any(map(is_alive, pids(first))))
    assert len(real_rows(list(ours.epoch(2)))) == 40  # starts new ones
    ours.close()


def test_each_process_of_each_rank_has_seeds_of_its_own_and_the_same_next_time() -> None:
    def seeds() -> list[set[tuple[int, ...]]]:
        found = []
        for rank in range(2):
            ours = loader(Seeds(), data_rank=rank, num_data_ranks=2)
            rows = [row for s in ours.epoch(0) for row in s.micro_batches[0].data["input"].tolist()]
            found.append({tuple(row) for row in rows})
            ours.close()
        return found

    first = seeds()
    assert [len(of_rank) for of_rank in first] == [2, 2]
    assert all(len(set(numbers)) == 4 for numbers in zip(*first[0], *first[1], strict=True))
    assert all(len(set(numbers)) == 3 for of_rank in first for numbers in of_rank)
    assert seeds() == first


def test_giving_up_in_the_middle_ends_the_processes() -> None:
    ours = loader(from_dataset(Process()), prefetch=1)
    steps = ours.epoch(0)
    started = pids(real_rows([next(steps), next(steps)]))
    assert all(map(is_alive, started))
    with pytest.raises(AssertionError, match="finish or close"):
        next(ours.epoch(1))
    steps.close()  # type: ignore[attr-defined]
    wait_until(lambda: not any(map(is_alive, started)))


def test_an_unreadable_sample_is_named_or_skipped_as_without_processes(
    make_folder: MakeFolder,
) -> None:
    root = make_folder(each=10)
    truncate(root / "dog" / "3.jpg")
    data = load_data(DataConfig(source=f"imagefolder:{root}", image_size=8), 0)
    with pytest.raises(UserError) as caught:
        list(loader(data.train, augment=data.augment).epoch(0))
    assert f"{root}/dog/3.jpg" in caught.value.what
    assert 'data.on_bad_sample = "skip"' in caught.value.hint

    source = from_dataset(Unreadable(12, 3, 7))
    here, there = (loader(source, workers=w, on_bad_sample="skip") for w in (0, 2))
    rows = real_rows(list(there.epoch(0)))
    assert rows == real_rows(list(here.epoch(0)))
    assert {index for index, (_, weight) in rows.items() if weight == 0} == {3, 7}
    there.close()


def test_a_defect_of_the_data_set_shows_its_traceback() -> None:
    with pytest.raises(KeyError, match=r"(?s)Original Traceback.*datasets.py.*a typo of the user"):
        list(loader(from_dataset(Broken())).epoch(0))


@pytest.mark.parametrize(
    ("number", "what", "hint"),
    [
        (signal.SIGKILL, "was killed by SIGKILL", "memory"),
        (signal.SIGBUS, "shared memory ran out in loader process", "--shm-size"),
    ],
)
def test_a_killed_process_is_named(number: signal.Signals, what: str, hint: str) -> None:
    ours = loader(from_dataset(Process(seconds=0.05)), prefetch=1)
    steps = ours.epoch(0)
    (victim, *_) = pids(real_rows([next(steps)]))
    os.kill(victim, number)
    with pytest.raises(UserError) as caught:
        list(steps)
    assert what in caught.value.what
    assert f"(pid {victim})" in caught.value.what
    assert hint in caught.value.hint


def test_shared_memory_that_cannot_do_is_refused_before_the_start() -> None:
    data = load_data(DataConfig(source="synthetic", image_size=224), 0)
    with pytest.raises(UserError) as caught:
        loader(data.train, global_batch=50_000_000)
    assert "2 loader processes need" in caught.value.what
    assert "MB of shared memory" in caught.value.what
    assert "data.workers = 0" in caught.value.hint
    assert "--shm-size" in caught.value.hint


def test_shared_memory_that_runs_out_is_explained() -> None:
    with pytest.raises(UserError, match="shared memory ran out") as caught:
        list(loader(from_dataset(Confined())).epoch(0))
    assert "--shm-size" in caught.value.hint


def test_data_sets_from_a_notebook_are_sent_by_value() -> None:
    class Local(Dataset[Any]):
        transform = staticmethod(lambda x: x * 2)

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return self.transform(torch.tensor(float(index)))

    ours = loader(from_dataset(Local()))
    values = [v for s in ours.epoch(0) for v in s.micro_batches[0].data["input"].tolist()]
    assert sorted(values) == [2.0 * i for i in range(8)]
    ours.close()


def test_a_data_set_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(UserError, match="Locked cannot be sent to loader processes") as caught:
        list(loader(from_dataset(Locked())).epoch(0))
    assert "data.workers = 0" in caught.value.hint


@pytest.mark.parametrize(
    ("in_memory", "cores", "expected"),
    [(True, 64, 0), (False, 1, 1), (False, 0, 1), (False, 6, 6), (False, 128, 16)],
)
def test_the_number_of_processes(in_memory: bool, cores: int, expected: int) -> None:
    assert choose_workers(in_memory, cores) == expected


def test_minus_one_gives_none_to_arrays_and_some_to_files() -> None:
    digits = load_data(DataConfig(), 0).train
    assert loader(digits, workers=-1).num_workers == 0
    assert loader(from_dataset(Process()), workers=-1, cores=3).num_workers == 3


RANK = """
import os, signal, sys
from paceline.data.loader import Loader
from paceline.data.sources import from_dataset
from tests.data.datasets import Process

if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: print("told to stop", flush=True))
    loader = Loader(from_dataset(Process(seconds=0.02)), seed=0, global_batch=4, workers=2)
    steps = loader.epoch(0)
    found = [next(steps) for _ in range(3)]
    print(*{int(b.data["input"][0, 0]) for s in found for b in s.micro_batches}, flush=True)
    sys.stdin.readline()
    print(len(found) + sum(1 for _ in steps), flush=True)
"""


def start_rank() -> tuple[subprocess.Popen[str], list[int]]:
    """A rank with two loader processes in a process group of its own, and their numbers."""
    process = subprocess.Popen(
        [sys.executable, "-c", RANK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert len(workers) == 2
    return process, workers


def test_signals_to_the_whole_group_leave_the_data_flowing_and_the_end_is_clean() -> None:
    process, workers = start_rank()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.killpg(process.pid, number)
        assert process.stdout is not None
        assert process.stdout.readline() == "told to stop\n"
    out, errors = process.communicate("\n", timeout=60)
    assert out == "10\n"  # every step of the epoch
    assert errors == ""
    assert process.returncode == 0
    wait_until(lambda: not any(map(is_alive, workers)))


def test_the_processes_of_a_killed_rank_leave() -> None:
    process, workers = start_rank()
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(is_alive, workers)))
