"""Drill: many elastic restarts in a row recover, under Paceline's launcher and under an outside torchrun."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import ExitCode
from tests.drills.plan import Fault
from tests.drills.report import Report, spread
from tests.drills.runs import COMMAND, DrillRun, settings

NUM_RANKS = 2
ENDS = ("SIGKILL", "SIGKILL", "SIGSEGV", "exception", "exit")


def torchrun(max_restarts: int) -> list[str]:
    """The outside launcher; `train …` follows."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(NUM_RANKS), "--max-restarts", str(max_restarts)),
        *("-m", "--", "paceline"),  # without the dashes torchrun takes --run for one of its options
    ]


def drill_own(folder: Path, *, seed: int, count: int) -> Report:
    return _drill("restarts", folder, seed, count, COMMAND)


def drill_torchrun(folder: Path, *, seed: int, count: int) -> Report:
    return _drill("torchrun", folder, seed, count, torchrun(count))


def _drill(name: str, folder: Path, seed: int, count: int, command: Sequence[str]) -> Report:
    """One launch with `count` restarts; every attempt joins, trains and is ended by a fault."""
    config = settings(
        parallel__ranks=NUM_RANKS,
        launch__max_restarts=count,
        checkpoint__every_steps=1,
        train__epochs=2 + count // 4,
        train__eval_every=1000,
    )
    run = DrillRun(folder / name, config)
    run.use(_faults(random.Random(f"{seed} {name}"), count))
    code = run.launch(command=command)
    assert code == ExitCode.OK, f"exit code {code}:\n{run.output()}"
    run.check_clean()
    struck = run.struck()
    assert len(struck) == count, f"{len(struck)} of {count} faults struck"
    assert [each["attempt"] for each in struck] == list(range(count)), "an attempt did not train"
    trained = {event["attempt"]: event["time"] for event in run.plan.events("trained")}
    report = Report(name)
    report.add_kills(struck)
    report.figures["restarts in a row that recovered"] = count
    report.figures["from a fault to the next attempt's first pass"] = spread(
        [trained[each["attempt"] + 1] - each["time"] for each in struck]
    )
    report.figures["fewest whole steps of an attempt"] = min(each["passes"] - 2 for each in struck)
    report.add_cleanliness([run])
    return report


def _faults(generator: random.Random, count: int) -> list[Fault]:
    """The first pass of an attempt is thrown away; in the third, one step has been taken."""
    return [
        Fault(number, "step", generator.randint(3, 5), rank, rank, generator.choice(ENDS))
        for number in range(count)
        for rank in [generator.randrange(NUM_RANKS)]
    ]
