from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from paceline.config.schema import DataConfig
from paceline.data.bundle import load_data
from paceline.data.loader import Loader
from paceline.data.prefetch import to_device

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device_name", DEVICES)
def test_every_step_arrives_prepared_and_in_order(device_name: str) -> None:
    device = torch.device(device_name)
    data = load_data(DataConfig(), 0)
    pin = device.type == "cuda"
    loader = Loader(data.train, seed=0, global_batch=64, evaluation=data.evaluation, pin_memory=pin)
    for there, here in zip(
        to_device(loader.epoch(0), device, data.prepare), loader.epoch(0), strict=True
    ):
        assert (there.position, there.stop) == (here.position, here.stop)
        for got, plain in zip(there.micro_batches, here.micro_batches, strict=True):
            assert got.data["input"].device.type == got.weights.device.type == device.type
            assert got.indices.device.type == "cpu"
            assert torch.equal(got.indices, plain.indices)
            expected = data.prepare(plain.to(device)).data["input"]
            assert torch.equal(got.data["input"], expected)


@pytest.mark.parametrize("device_name", DEVICES)
def test_evaluation_items_keep_their_nones(device_name: str) -> None:
    data = load_data(DataConfig(source="synthetic", num_samples=40), 0)
    loader = Loader(
        data.train,
        seed=0,
        global_batch=4,
        evaluation=data.evaluation,
        data_rank=0,
        num_data_ranks=2,
    )
    loaded = list(to_device(loader.evaluation(2), torch.device(device_name), data.prepare))
    assert [None if b is None else len(b) for b in loaded] == [2, None]


@pytest.mark.parametrize("device_name", DEVICES)
def test_giving_up_closes_what_feeds_it(device_name: str) -> None:
    closed = []

    def feed() -> Iterator[None]:
        try:
            while True:
                yield None
        finally:
            closed.append(True)

    items = to_device(feed(), torch.device(device_name), lambda batch: batch)
    next(items)
    items.close()  # type: ignore[attr-defined]
    assert closed
