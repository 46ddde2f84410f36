"""Where a step's time goes: on the host's clock, from autograd's thread, and by CUDA events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch

from paceline.records.phases import PHASES, PhaseClock

CPU = torch.device("cpu")


def run_step(clock: PhaseClock) -> None:
    """Eleven phases over three micro-batches, as the loop marks them."""
    clock.start_step()
    with clock.phase("data"):
        pass
    for _ in range(3):
        with clock.phase("copy"):
            pass
        with clock.phase("forward"):
            pass
        with clock.phase("backward"):
            pass
    with clock.phase("optimizer"):
        pass
    clock.end_step()


def test_phases_add_up_to_the_step() -> None:
    clock = PhaseClock(CPU)
    for _ in range(3):
        run_step(clock)
    steps = clock.collect()
    assert len(steps) == 3
    for step in steps:
        assert tuple(step.phases) == PHASES
        assert sum(step.phases.values()) == pytest.approx(step.step_s)
        assert min(step.phases.values()) >= 0


def test_time_belongs_to_the_phase_it_was_spent_in() -> None:
    clock = PhaseClock(CPU)
    clock.start_step()
    for _ in range(2):
        with clock.phase("forward"):
            time.sleep(0.02)
        with clock.phase("optimizer"):
            time.sleep(0.01)
    time.sleep(0.01)
    clock.end_step()
    (step,) = clock.collect()
    assert step.phases["forward"] >= 0.04
    assert step.phases["optimizer"] >= 0.02
    assert step.phases["other"] >= 0.01
    assert step.phases["data"] == 0


def test_an_inner_phase_takes_its_time_from_the_outer_one() -> None:
    clock = PhaseClock(CPU)
    clock.start_step()
    with clock.phase("forward"), clock.phase("data"):
        time.sleep(0.02)
    clock.mark("exchange")
    time.sleep(0.01)
    clock.end_step()
    (step,) = clock.collect()
    assert step.phases["data"] >= 0.02
    assert step.phases["forward"] < 0.01
    assert step.phases["exchange"] >= 0.01


def test_the_end_of_backward_after_the_last_gradient_is_exchange() -> None:
    """Each bucket reports from another thread, as autograd does; the last report counts."""
    clock = PhaseClock(CPU)
    clock.start_step()
    with clock.phase("backward"):
        time.sleep(0.05)
    with clock.phase("backward"):
        for _ in range(2):
            time.sleep(0.02)
            thread = threading.Thread(target=clock.last_gradient)
            thread.start()
            thread.join()
        time.sleep(0.03)
    clock.end_step()
    (step,) = clock.collect()
    assert step.phases["backward"] >= 0.09
    assert 0.03 <= step.phases["exchange"] < 0.05
    assert sum(step.phases.values()) == pytest.approx(step.step_s)


def test_marks_outside_of_a_step_count_for_nothing() -> None:
    """Such as the warm-up pass before the first step."""
    clock = PhaseClock(CPU)
    with clock.phase("backward"):
        clock.last_gradient()
    assert clock.collect() == []
    run_step(clock)
    assert clock.collect()[0].phases["exchange"] == 0


def test_a_step_that_was_given_up_is_forgotten() -> None:
    clock = PhaseClock(CPU)
    clock.start_step()
    with pytest.raises(ZeroDivisionError), clock.phase("forward"):
        raise ZeroDivisionError
    run_step(clock)
    assert len(clock.collect()) == 1
    assert clock.collect() == []


def test_an_unknown_phase_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="'forwards' is no phase"):
        PhaseClock(CPU).phase("forwards")


def test_measuring_costs_little() -> None:
    """Under 20 microseconds a step; the best of several rounds, since the machine may be busy."""
    clock = PhaseClock(CPU)
    rounds = []
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(50):
            run_step(clock)
        rounds.append((time.perf_counter() - begin) / 50)
        clock.collect()
    assert min(rounds) < 20e-6, f"{min(rounds) * 1e6:.1f} us a step"


@pytest.fixture
def spin() -> Callable[[float], None]:
    """Keeps the GPU busy for about so many seconds, without the host waiting."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    cycles = 10_000_000
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(cycles)  # the first one also loads the kernel
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    cycles_per_s = cycles / (begin.elapsed_time(end) / 1000)
    return lambda seconds: torch.cuda._sleep(int(seconds * cycles_per_s))


@pytest.mark.cuda
def test_cuda_phases_are_device_times_and_add_no_synchronization(
    spin: Callable[[float], None],
) -> None:
    clock = PhaseClock(torch.device("cuda", torch.cuda.current_device()))
    run_step(clock)  # creates the events
    clock.collect()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(2):
        clock.start_step()
        with clock.phase("data"):
            time.sleep(0.01)  # hidden in the second step, where the device is still busy
        with clock.phase("forward"):
            spin(0.1)
        with clock.phase("backward"):
            spin(0.06)
            thread = threading.Thread(target=clock.last_gradient)
            thread.start()
            thread.join()
            spin(0.04)
        clock.end_step()
    host_s = time.perf_counter() - begin
    first, second = clock.collect()
    assert host_s < 0.2, "marking waited for the device"
    assert first.phases["data"] >= 0.009
    assert second.phases["data"] < 0.005
    for step in (first, second):
        assert step.phases["forward"] == pytest.approx(0.1, rel=0.3)
        assert step.phases["backward"] == pytest.approx(0.06, rel=0.3)
        assert step.phases["exchange"] == pytest.approx(0.04, rel=0.3)
        assert sum(step.phases.values()) == pytest.approx(step.step_s, rel=1e-4)


@pytest.mark.cuda
def test_cuda_phases_follow_the_stream_of_the_step(spin: Callable[[float], None]) -> None:
    clock = PhaseClock(torch.device("cuda", torch.cuda.current_device()))
    with torch.cuda.stream(torch.cuda.Stream()):
        clock.start_step()
        with clock.phase("forward"):
            spin(0.05)
        clock.end_step()
    (step,) = clock.collect()
    assert step.phases["forward"] == pytest.approx(0.05, rel=0.3)
