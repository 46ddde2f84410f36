"""Plays a planted run on this terminal: python -m tests.ui.play FOLDER [--speed N] [--epochs N].

For looking at the screen with one's own eyes, and for the test that looks at it through tmux.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from paceline.ui.ending import show_end
from paceline.ui.follow import View, showing
from tests.ui.planted import STEPS_PER_EPOCH, PlantedRun

STEP_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--speed", type=float, default=1.0, help="times as fast as it claims to be")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    run = PlantedRun(options.folder, num_ranks=options.ranks, epochs=options.epochs)
    with showing(run.folder, num_ranks=options.ranks) as view:
        play(run, view, options.speed)
    show_end(run.folder)


def play(run: PlantedRun, view: View, speed: float) -> None:
    wait = 1 / speed
    time.sleep(2 * wait)
    run.start(notes=["on a CPU, dp says nothing of speed"])
    for epoch in range(1, run.epochs + 1):
        for step in range((epoch - 1) * STEPS_PER_EPOCH + 1, epoch * STEPS_PER_EPOCH + 1):
            time.sleep(STEP_S * wait)
            run.step(step)
            run.flush()
        time.sleep(0.2 * wait)
        run.end_epoch(epoch)
        say_something(run, view, epoch, wait)
    run.finish()
    time.sleep(wait)


def say_something(run: PlantedRun, view: View, epoch: int, wait: float) -> None:
    """What ranks print, now and then."""
    if epoch == 2:
        for rank in range(run.num_ranks):
            run.log(rank, "UserWarning: [red]something[/red] for \x1b[31mred\x1b[0m ears\x07\n")
    if epoch == 3:
        run.log(run.num_ranks - 1, "only this rank: loaded 3 of 4 shards\n")
        run.record("warning", text="the checkpoint folder has 1.2 GiB left, a checkpoint takes 1.0")
    if epoch == 4:
        run.log(0, "".join(f"debug print {n}\n" for n in range(5000)))
    if epoch == 5:
        run.log(1, "Traceback (most recent call last):\n  File x\n    y\nValueError: no image\n")
        view.notice("rank 1 was killed by SIGKILL; restart 1 of at most 3", "warning")
        time.sleep(3 * wait)
        run.start(step=5 * STEPS_PER_EPOCH, attempt=1)
        time.sleep(wait)


if __name__ == "__main__":
    main()
