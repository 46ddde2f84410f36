"""What the benchmarks share: bounds that hold what they promise, balanced orders, turns, output."""

from __future__ import annotations

import collections
import itertools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import common
import pytest
from turns import Stopwatch, TurnTaking


def test_a_ratio_ignores_what_slows_a_whole_round() -> None:
    rounds = [1.0, 50.0, 3.0, 0.1, 7.0, 2.0]
    ratio = common.paired_ratio([1.02 * s for s in rounds], rounds)
    assert (ratio.value, ratio.num_rounds) == (pytest.approx(1.02), 6)
    assert ratio.low == pytest.approx(1.02)
    assert ratio.high == pytest.approx(1.02)


def test_one_round_that_was_disturbed_does_not_decide() -> None:
    theirs = [1.0] * 20
    ours = [1.02, 1.0, 1.01, 1.03, 1.02] * 4
    quiet = common.paired_ratio(ours, theirs)
    disturbed = common.paired_ratio([*ours[:-1], 30.0], theirs)
    assert disturbed.value == pytest.approx(quiet.value, abs=0.005)
    assert disturbed.high == pytest.approx(quiet.high, abs=0.005)


@pytest.mark.parametrize("num_rounds", [6, 10, 40])
def test_bounds_hold_the_true_ratio_in_95_of_100_experiments(num_rounds: int) -> None:
    draw = random.Random(1)
    held = 0
    for _ in range(2000):
        theirs = [draw.lognormvariate(0, 0.5) for _ in range(num_rounds)]
        ours = [1.1 * s * draw.lognormvariate(0, 0.1) for s in theirs]
        ratio = common.paired_ratio(ours, theirs)
        held += ratio.low <= 1.1 <= ratio.high
    assert held / 2000 == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("num", [2, 3, 4, 5])
def test_in_balanced_orders_none_is_favoured(num: int) -> None:
    orders = common.balanced_orders(num)
    places = collections.Counter((i, one) for order in orders for i, one in enumerate(order))
    follows = collections.Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(places) == num * num
    assert len(follows) == num * (num - 1)
    assert len(set(places.values())) == len(set(follows.values())) == 1


def test_conditions_say_where_and_how(capsys: pytest.CaptureFixture[str]) -> None:
    found = common.conditions("pytest")
    common.show_conditions(found)
    shown = capsys.readouterr().out
    for part in (found["machine"]["cpu"], f"pytest {pytest.__version__}", *found["command"]):
        assert part in shown


def test_a_table_lines_up_and_json_can_be_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common.show_table(["loop", "ms"], [["a", "1.50"], ["longer", "12.00"]])
    assert capsys.readouterr().out == "loop       ms\na        1.50\nlonger  12.00\n"
    common.write_json(tmp_path / "figures.json", {"ratio": 1.5})
    assert json.loads((tmp_path / "figures.json").read_text()) == {"ratio": 1.5}


def test_loops_take_turns_and_only_their_own_time_counts() -> None:
    ran: list[str] = []

    def body(name: str, seconds: float) -> Callable[[Callable[[], None]], None]:
        def loop(next_batch: Callable[[], None]) -> None:
            for _ in range(7):
                next_batch()
                time.sleep(seconds)
                for act in (watch.start, watch.start, watch.stop, watch.stop):  # one in the other
                    act()
                    time.sleep(0.001)
                ran.append(name)

        return loop

    synchronized: list[int] = []
    watch = Stopwatch()
    quick, slow = (
        TurnTaking(body(name, seconds), lambda: synchronized.append(1), watch)
        for name, seconds in (("quick", 0.0), ("slow", 0.1))
    )
    for loop in (quick, slow):
        loop.take(0)
    assert ran == []
    blocks = [loop.take(3) for loop in (quick, slow, quick, slow)]
    assert ran == ["quick"] * 3 + ["slow"] * 3 + ["quick"] * 3 + ["slow"] * 3
    assert [len(block.step_s) for block in blocks] == [3] * 4
    assert min(s for block in blocks[::2] for s in block.step_s) < 0.1
    assert all(own >= 0.1 for block in blocks[1::2] for own in block.own_s)
    for block in blocks:
        common_s = [s - own for s, own in zip(block.step_s, block.own_s, strict=True)]
        assert all(s >= 0.003 for s in common_s)
    assert len(synchronized) == 6  # at every hand-over
    slow.end()
    quick.end()
    assert len(ran) == 14
