from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from paceline.config.schema import DataConfig
from paceline.data.augment import build_augment
from paceline.data.batch import Batch
from paceline.data.bundle import load_data
from paceline.data.loader import Loader, StepBatches
from paceline.data.order import permutation
from paceline.data.sources import BadSample, Source, VectorSource, from_dataset
from paceline.errors import UserError
from tests.data.conftest import MakeFolder, truncate
from tests.data.datasets import Drawing, Unreadable


def numbers(n: int) -> Source:
    """Sample i is an image of i."""
    values = torch.arange(n, dtype=torch.float64)
    return from_dataset(TensorDataset(values.reshape(n, 1, 1, 1).expand(n, 1, 4, 4)))


def ranks(source: Source, count: int, **options: Any) -> list[Loader]:
    options = {"seed": 3, **options}
    return [Loader(source, data_rank=r, num_data_ranks=count, **options) for r in range(count)]


def real_rows(steps: list[StepBatches]) -> dict[int, tuple[Any, float]]:
    """(data, weight) by sample index, fillers left out; each index once."""
    rows: dict[int, tuple[Any, float]] = {}
    for step in steps:
        for batch in step.micro_batches:
            for row, index in enumerate(batch.indices.tolist()):
                if index >= 0:
                    assert index not in rows
                    data = {name: t[row].numpy().tobytes() for name, t in batch.data.items()}
                    rows[index] = (data, batch.weights[row].item())
    return rows


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    ("n", "batch", "micro"), [(7, 6, 1), (23, 12, 2), (24, 12, 0), (5, 6, 1), (49, 24, 4)]
)
def test_each_sample_once_an_epoch_from_any_position(
    count: int, n: int, batch: int, micro: int
) -> None:
    source = numbers(n)
    loaders = ranks(source, count, global_batch=batch, micro_batch=micro)
    for epoch, start in itertools.product((0, 1), (0, 1, batch)):
        order = permutation(3, epoch, n)[start:]
        steps = list(zip(*(loader.epoch(epoch, start) for loader in loaders), strict=True))
        assert len(steps) == -(-max(n - start, 0) // batch)
        seen: list[int] = []
        for together in steps:
            first = together[0]
            indices = [i for step in together for i in step.indices]
            assert all((s.position, s.stop) == (first.position, first.stop) for s in together)
            assert first.position == start + len(seen)
            assert len(indices) == first.num_global == sum(s.num_real for s in together)
            assert all(step.micro_batches for step in together)
            for batch_ in (b for step in together for b in step.micro_batches):
                check_batch(batch_)
            seen += indices
        assert seen == order.tolist()


def check_batch(batch: Batch) -> None:
    """Weights, indices and data belong together."""
    assert batch.weights.dtype == torch.float32
    assert batch.indices.dtype == torch.int64
    assert batch.num_real == int(batch.weights.sum())
    expected = torch.where(batch.indices < 0, 0, batch.indices).double()
    assert torch.equal(batch.data["input"][:, 0, 0, 0], expected)
    assert torch.equal(batch.weights, (batch.indices >= 0).float())


def test_a_rank_without_samples_gets_a_filler_of_the_same_shape() -> None:
    (_, _, last) = ranks(numbers(14), 3, global_batch=12)
    filler = list(last.epoch(0))[-1].micro_batches
    assert [batch.indices.tolist() for batch in filler] == [[-1]]
    assert filler[0].weights.tolist() == [0]
    assert filler[0].num_real == 0
    assert torch.equal(filler[0].data["input"], torch.zeros(1, 1, 4, 4, dtype=torch.float64))


def test_groups_of_samples_do_not_depend_on_ranks() -> None:
    groups = []
    for count in (1, 2, 3, 6):
        loaders = ranks(numbers(65), count, global_batch=24, micro_batch=4)
        steps = zip(*(loader.epoch(2) for loader in loaders), strict=True)
        groups.append(
            [b.indices.tolist() for t in steps for s in t for b in s.micro_batches if b.num_real]
        )
    assert groups[0] == groups[1] == groups[2] == groups[3]


@pytest.mark.parametrize("augment", ["shift", "crop-flip", "resized-crop-flip"])
def test_the_same_pixels_on_any_ranks_and_after_a_resume(augment: str) -> None:
    data = load_data(
        DataConfig(source="synthetic", image_size=9, num_samples=50, augment=augment), 0
    )
    expected = None
    for count, micro, start in [(1, 0, 0), (2, 0, 0), (3, 2, 0), (1, 4, 12), (3, 0, 24)]:
        loaders = ranks(data.train, count, global_batch=12, micro_batch=micro, augment=data.augment)
        rows: dict[int, Any] = {}
        for loader in loaders:
            rows |= real_rows(list(loader.epoch(1, start)))
        expected = expected or rows
        assert len(rows) == 50 - start
        assert all(expected[index] == row for index, row in rows.items())


def test_augmentation_is_of_the_epoch_and_evaluation_has_none() -> None:
    data = load_data(DataConfig(), 0)
    loader = Loader(
        data.train, seed=0, global_batch=64, augment=data.augment, evaluation=data.train
    )
    first, second = (real_rows(list(loader.epoch(e))) for e in (0, 1))
    assert sum(first[i] != second[i] for i in first) > 1000
    plain = next(iter(loader.evaluation(100)))
    assert plain is not None
    assert np.array_equal(
        plain.data["input"],
        data.train.load_many(np.arange(100))["input"],  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize(("n", "size"), [(1, 4), (10, 4), (17, 3), (8, 100)])
def test_evaluation_counts_each_sample_once_in_equally_many_items(
    n: int, size: int, count: int
) -> None:
    loaders = ranks(numbers(4), count, global_batch=2 * count, evaluation=numbers(n))
    items = [list(loader.evaluation(size)) for loader in loaders]
    assert len({len(one) for one in items}) == 1
    real = [b for one in items for b in one if b is not None]
    assert [i for batch in real for i in batch.indices.tolist()] == list(range(n))
    for batch in real:
        check_batch(batch)
        assert len(batch) <= size


def test_a_users_generators_are_seeded_by_sample_and_the_rank_s_are_kept() -> None:
    source = from_dataset(Drawing())
    torch.manual_seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    results = []
    for count, micro in [(1, 0), (2, 2), (3, 0)]:
        rows: dict[int, Any] = {}
        for loader in ranks(source, count, global_batch=12, micro_batch=micro):
            rows |= real_rows(list(loader.epoch(0)))
        results.append(rows)
    assert results[0] == results[1] == results[2]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]
    assert random.getstate() == before[2]
    drawn = {data["input"] for data, _ in results[0].values()}
    assert len(drawn) == 23
    other = real_rows(list(ranks(source, 1, global_batch=12)[0].epoch(1)))
    assert not drawn & {data["input"] for data, _ in other.values()}


# Unreadable samples


def test_an_unreadable_sample_ends_the_run_with_its_name_and_what_to_set(
    make_folder: MakeFolder,
) -> None:
    root = make_folder(each=10)
    truncate(root / "dog" / "3.jpg")
    config = DataConfig(source=f"imagefolder:{root}", image_size=8)
    data = load_data(config, 0)
    loader = Loader(data.train, seed=0, global_batch=4, augment=data.augment)
    with pytest.raises(UserError) as caught:
        list(loader.epoch(0))
    assert f"{root}/dog/3.jpg" in caught.value.what
    assert 'data.on_bad_sample = "skip"' in caught.value.hint


def test_a_skipped_sample_has_weight_0_and_the_pixels_of_a_good_one() -> None:
    source = from_dataset(Unreadable(12, 3, 7))
    loaders = ranks(source, 2, global_batch=6, on_bad_sample="skip")
    skipped, seen = 0, []
    for loader in loaders:
        for step in loader.epoch(0):
            skipped += step.num_skipped
            assert len(step.indices) == step.num_real + step.num_skipped
            seen += step.indices
            (batch,) = step.micro_batches
            for row, index in enumerate(batch.indices.tolist()):
                value = batch.data["input"][row, 0, 0, 0].item()
                assert batch.weights[row].item() == (index not in (3, 7))
                good = [i + 1 for i in batch.indices.tolist() if i not in (3, 7)]
                assert value == index + 1 if index not in (3, 7) else value in good
    assert skipped == 2
    assert sorted(seen) == list(range(12))


def test_a_micro_batch_without_any_good_sample_is_blank() -> None:
    source = from_dataset(Unreadable(4, 0, 1, 2))
    (loader,) = ranks(source, 1, global_batch=1, on_bad_sample="skip", evaluation=source)
    batches = {b.indices.item(): b for step in loader.epoch(0) for b in step.micro_batches}
    assert {i: b.num_real for i, b in batches.items()} == {0: 0, 1: 0, 2: 0, 3: 1}
    assert torch.equal(batches[1].data["input"], torch.zeros(1, 1, 2, 2))
    assert [b.num_real for b in loader.evaluation(2) if b is not None] == [0, 1]


def test_a_source_without_any_good_sample_ends_the_run() -> None:
    source = from_dataset(Unreadable(3, 0, 1, 2))
    (loader,) = ranks(source, 1, global_batch=3, on_bad_sample="skip")
    with pytest.raises(UserError, match="none of the first 3 samples"):
        list(loader.epoch(0))


class OftenBad(VectorSource):
    """Loads many at once, and cannot load number 2."""

    def __len__(self) -> int:
        return 4

    def load_many(self, indices: np.ndarray) -> Any:
        if 2 in indices:
            raise BadSample(2, "", "is bad")
        return {"input": indices.astype(np.float32)}


def test_a_source_that_loads_many_at_once_may_have_bad_samples_too() -> None:
    (skipping,) = ranks(OftenBad(), 1, global_batch=4, on_bad_sample="skip")
    (step,) = skipping.epoch(0)
    assert (step.num_real, step.num_skipped) == (3, 1)
    with pytest.raises(UserError, match="sample 2: is bad"):
        list(ranks(OftenBad(), 1, global_batch=4)[0].epoch(0))


# Samples that do not fit


class Items(Source):
    def __init__(self, *items: Any, num_classes: int = 0) -> None:
        self.items, self.num_classes = items, num_classes

    def __len__(self) -> int:
        return len(self.items)

    def load(self, index: int) -> Any:
        return self.items[index]


@pytest.mark.parametrize(
    ("items", "what"),
    [
        (({"input": np.zeros(3)}, {"input": np.zeros(4)}), r"\(3,\) torch.float64 and \(4,\)"),
        (
            ({"input": np.zeros(3)}, {"input": np.zeros(3, np.float32)}),
            "float64 and .* torch.float32",
        ),
        (({"input": 1}, {"x": 1}), "keys 'input' and keys 'x'"),
        (({"input": 1, "target": "cat"},) * 2, "holds a str"),
        (({"input": None},) * 2, "NoneType"),
    ],
)
def test_samples_that_do_not_fit_together_are_named(items: tuple[Any, ...], what: str) -> None:
    with pytest.raises(UserError, match=what):
        list(ranks(Items(*items), 1, global_batch=2, seed=0)[0].epoch(0))


def test_labels_out_of_range_name_the_sample() -> None:
    source = Items({"input": 0.0, "target": 0}, {"input": 0.0, "target": 9}, num_classes=3)
    with pytest.raises(UserError, match=r"sample 1 of .* has the label 9, and there are 3 classes"):
        list(ranks(source, 1, global_batch=2)[0].epoch(0))


def test_augmentation_of_what_is_no_image_is_refused() -> None:
    for name in ("shift", "resized-crop-flip"):
        with pytest.raises(UserError, match=r"channels, height, width.*shape \(3,\)") as caught:
            list(
                ranks(
                    Items({"input": np.zeros(3)}), 1, global_batch=1, augment=build_augment(name, 4)
                )[0].epoch(0)
            )
        assert 'data.augment = "none"' in caught.value.hint


def test_python_numbers_become_int64_and_float32() -> None:
    (step,) = ranks(Items({"input": 0.5, "target": 2}), 1, global_batch=1)[0].epoch(0)
    data = step.micro_batches[0].data
    assert (data["input"].dtype, data["target"].dtype) == (torch.float32, torch.int64)


def test_memory_does_not_grow_over_epochs(make_folder: MakeFolder) -> None:
    root = make_folder(each=20)
    data = load_data(DataConfig(source=f"imagefolder:{root}", image_size=64), 0)
    loader = Loader(data.train, seed=0, global_batch=8, augment=data.augment)

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for epoch in range(3):
        list(loader.epoch(epoch))
    before = resident_bytes()
    for epoch in range(15):
        for _ in loader.epoch(epoch):
            pass
    assert resident_bytes() - before < 4e6  # an epoch's pixels alone are 0.4 MB
