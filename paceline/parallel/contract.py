"""The contract of a strategy: it owns forward and backward of this rank's share of one optimizer step.

A strategy is one file with a `Strategy` and one line in `registry.py`; how-to/add-a-strategy.md walks through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.config.schema import ParallelConfig, RunConfig
from paceline.data.batch import Batch
from paceline.models.spec import ModelSpec, Output, Sums
from paceline.parallel.place import Place
from paceline.parallel.world import World
from paceline.records.phases import PhaseClock

MakeOptimizer = Callable[[Sequence[tuple[str, nn.Parameter]]], Optimizer]


@dataclass(frozen=True)
class Gradients:
    """What `finish_gradients` found; equal on all ranks.

    norm: 0-d, the norm over all parameters before clipping. finite: 0-d bool. None where nobody asked for a norm.
    """

    norm: Tensor | None
    finite: Tensor | None


class Carried(Protocol):
    """A model carried by a strategy: what the loop talks to."""

    spec: ModelSpec

    @property
    def parts(self) -> Sequence[nn.Module]:
        """The modules in this process; more than one for interleaved stages."""

    def begin_epoch(self, epoch: int) -> None:
        """Before the first step of an epoch, or of what is left of it: sets which parameters are trained."""

    def forward_backward(
        self,
        micro_batches: Sequence[Batch],
        *,
        first: int,
        step: int,
        count: Tensor,
        loss_scale: Tensor | None,
    ) -> Sums:
        """Leaves in the gradients the sum over every sample of the global batch, divided by `count`.

        micro_batches: this rank's share, on its device. first: the number of its first, counted over all ranks'.
        step: with that, keys the dropout draws. count: 0-d, real samples of the global batch. Returns the sums of
        this rank's own samples: the loop adds ranks when it reports, so that a step has no exchange besides the
        gradients'.
        Raises ShortOfMemoryError on every rank where any ran out of memory. Then no rank waits for another, buffers
        are as they were, and the caller throws the gradients away and may call again with smaller micro-batches.
        """

    def evaluate(self, batch: Batch | None) -> Sums:
        """Sums of this rank's batch; None where its share is used up. Called equally often on every rank.

        Where memory runs out, a rank calls again with parts of its batch. A strategy whose ranks talk to each other
        in here agrees on that first, and raises on all of them.
        """

    def predict(self, batch: Batch | None) -> Output | None:
        """The model's output for this rank's batch; None where it has none. Called equally often on every rank."""

    def build_optimizer(self, make: MakeOptimizer) -> Optimizer: ...

    def finish_gradients(
        self, optimizer: Optimizer, *, max_norm: float, loss_scale: Tensor | None, want_norm: bool
    ) -> Gradients:
        """Undoes the loss scale, measures the norm where asked or needed, clips to `max_norm` unless it is 0."""

    def named_parameters(self) -> Sequence[tuple[str, Tensor]]:
        """Full names and this rank's local part of each parameter."""

    def tensors(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Everything to save: model/NAME, optimizer/NAME/KEY; per rank: rank-N/strategy/…"""

    def load_tensors(self, values: Mapping[str, Tensor], optimizer: Optimizer | None) -> None:
        """Takes values as `tensors` names them; without an optimizer, only the model's."""

    def notes(self) -> Sequence[str]:
        """What every report about this run must say."""

    def news(self) -> str | None:
        """What only a pass could show, said once; asked after a step."""


class Strategy(Protocol):
    """How a model is spread over devices."""

    def place(self, config: ParallelConfig, num_devices: int, rank: int) -> Place: ...

    def carry(
        self, spec: ModelSpec, config: RunConfig, world: World, clock: PhaseClock
    ) -> Carried: ...
