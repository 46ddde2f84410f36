"""How a global batch is cut over devices, and what is said where it cannot be."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.parallel.place import Place, Split, split_batch


def place(data_ranks: int, devices: int = 1) -> Place:
    return Place(
        num_processes=data_ranks,
        devices_per_process=devices,
        data_rank=0,
        num_data_ranks=data_ranks,
    )


@pytest.mark.parametrize(
    ("batch", "micro", "where", "expected"),
    [
        (64, 0, place(1), Split(64, 1)),
        (64, 16, place(2), Split(16, 2)),
        (96, 0, place(3), Split(32, 1)),
        (96, 8, place(1, devices=3), Split(24, 4)),
    ],
)
def test_split(batch: int, micro: int, where: Place, expected: Split) -> None:
    assert split_batch(batch, micro, where) == expected


@pytest.mark.parametrize(
    ("batch", "micro", "where", "text"),
    [
        (
            100,
            0,
            place(8),
            "global_batch = 100 cannot be split over 8 ranks\n  hint: use 96 or 104, or start 4 or 5 ranks",
        ),
        (
            3,
            0,
            place(8),
            "global_batch = 3 cannot be split over 8 ranks\n  hint: use 8, or start 1 or 3 ranks",
        ),
        (
            64,
            24,
            place(2),
            "parallel.micro_batch = 24 does not divide a device's share of 32 samples"
            " (global_batch = 64 over 2)\n  hint: use 16 or 32",
        ),
    ],
)
def test_refusals(batch: int, micro: int, where: Place, text: str) -> None:
    with pytest.raises(UserError) as refused:
        split_batch(batch, micro, where)
    assert str(refused.value) == text
