"""The model of the drills' runs, which strikes the process that it is built in when the plan says so.

Ranks come here through `model.name = "tests.drills.model:model"`, so that a drill runs the real command from end to
end. Without a plan in the environment it is an ordinary model.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from paceline.launch.lifeline import LAUNCHER as LAUNCHER_VARIABLE
from paceline.models.small_resnet import SmallResNet
from paceline.parallel.launched import Launched, launched
from tests.drills.plan import FOLDER, LAUNCH, LAUNCHER, Fault, Plan
from tests.drills.processes import MARK, processes_of


def model(
    num_classes: int, norm: str = "batch", dropout: float = 0.2, unusual: bool = False
) -> nn.Module:
    """unusual: it also draws from numpy and random, and has buffers that every pass changes."""
    net = SmallResNet(1, num_classes, width=8, norm=norm, dropout=dropout)
    if unusual:
        net.head = nn.utils.parametrizations.spectral_norm(net.head)
        net.register_forward_hook(_add_noise)
    if FOLDER in os.environ:
        net.register_forward_pre_hook(_forward)
        _striker().built()
    return net


def _add_noise(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    noise = np.random.standard_normal() + random.random()
    return output + 0.01 * noise if module.training else output


@functools.cache
def _striker() -> Striker:
    """One a process, though models may be built more often."""
    return Striker(Plan(Path(os.environ[FOLDER])))


def _forward(module: nn.Module, inputs: Any) -> None:
    _striker().forward(module.training)


class Striker:
    """Counts where this rank comes by, and carries out the plan's next fault there."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._me = launched() or Launched()
        self._launch = int(os.environ[LAUNCH])
        fault = plan.next_for(self._launch, self._me.attempt)
        self._fault = fault if fault is not None and fault.rank == self._me.rank else None
        self._counts: Counter[str] = Counter()
        self._left: list[str] = []
        _call_at_phases(self.reach)

    def built(self) -> None:
        if self._counts["build"] == 0 and self._me.rank == 0:
            self._look_for_leftovers()
        self.reach("build")

    def forward(self, training: bool) -> None:
        if training and self._counts["step"] == 0 and self._me.rank == 0:
            still = [name for name in self._left if (self._checkpoints / name).exists()]
            self._plan.tell(
                "trained", attempt=self._me.attempt, partial=len(self._left), still_there=still
            )
        self.reach("step" if training else "evaluation")

    def reach(self, where: str) -> None:
        self._counts[where] += 1
        fault = self._fault
        if fault is None or fault.where != where or self._counts[where] != fault.after:
            return
        if fault.delay_s:
            threading.Timer(fault.delay_s, self._strike, [fault]).start()
        else:
            self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        rank_or_launcher = os.getpid()
        if fault.victim == LAUNCHER:
            rank_or_launcher = int(os.environ[LAUNCHER_VARIABLE])
        if not self._plan.strike(
            fault,
            rank_or_launcher,
            launch=self._launch,
            attempt=self._me.attempt,
            passes=self._counts["step"],
        ):
            return
        if fault.how == "exception":
            raise RuntimeError(f"fault {fault.number} of the drill")
        if fault.how == "exit":
            os._exit(17)
        if fault.how == "SIGKILL":
            time.sleep(60)  # the signal is on its way; what is struck does nothing more

    def _look_for_leftovers(self) -> None:
        """What earlier attempts left when this one began: no process, at most unfinished folders."""
        if self._checkpoints.is_dir():
            self._left = [path.name for path in self._checkpoints.glob(".step-*")]
        earlier = [
            process.pid
            for process, environ in processes_of(os.environ[MARK])
            if int(environ.get("TORCHELASTIC_RESTART_COUNT", self._me.attempt)) < self._me.attempt
        ]
        self._plan.tell("built", attempt=self._me.attempt, earlier=earlier)

    @property
    def _checkpoints(self) -> Path:
        return self._plan.folder.with_name("run") / "checkpoints"


def _call_at_phases(reach: Any) -> None:
    """The store tells its phases to whoever asks; the loop, which builds it, never does."""
    from paceline.loop import train

    train.Store = functools.partial(train.Store, on_phase=reach)  # type: ignore[misc, assignment]
