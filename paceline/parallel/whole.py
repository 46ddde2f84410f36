"""What the strategies share that keep the whole model in each process: one step's passes, clipping, names to save."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from paceline.config.schema import RunConfig
from paceline.data.batch import Batch
from paceline.models.spec import ModelSpec, Output, Sums
from paceline.models.weights import check_fit
from paceline.parallel.blocks import choose_blocks, compile_blocks, recompute
from paceline.parallel.buffers import OwnBuffers
from paceline.parallel.contract import Gradients, MakeOptimizer
from paceline.parallel.draws import seed_micro_batch
from paceline.parallel.freezing import Freezing
from paceline.parallel.layout import Layout
from paceline.parallel.memory import ShortOfMemoryError, free_memory, is_out_of_memory, words_of
from paceline.parallel.optimizer_state import load_optimizer_tensors, optimizer_tensors
from paceline.parallel.place import Place
from paceline.parallel.precision import autocast, parameter_dtype
from paceline.parallel.statistics import RunningStatistics
from paceline.records.phases import PhaseClock


class WholeModel:
    """A model that is whole in this process: alone, or as one of several equal replicas.

    forward: what is called for a training pass; wraps `module` or is it. skip_exchange: entered around every pass
    of a step but the last.
    """

    def __init__(
        self,
        module: nn.Module,
        spec: ModelSpec,
        config: RunConfig,
        place: Place,
        devices: list[torch.device],
        clock: PhaseClock,
    ) -> None:
        self.parts = [module]
        self.module = module
        self.forward: Callable[..., Any] = module
        self.skip_exchange: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
        self.spec = spec
        self.config = config
        self.devices = devices
        self.clock = clock
        self.freezing = Freezing(module, config.finetune, spec.head(module))
        self.layout = Layout(
            module, config.model.channels_last, look=config.model.compile == "none"
        )
        self.statistics = RunningStatistics(
            module,
            place.num_data_ranks,
            frozen=config.finetune.frozen_batchnorm,
            can_go_back=config.memory.shrink == "always",
        )
        self.buffers = OwnBuffers(module, self.statistics.has)
        self._names = {id(p): name for name, p in module.named_parameters()}

    def begin_epoch(self, epoch: int) -> None:
        self.freezing.begin_epoch(epoch)

    def forward_backward(
        self,
        micro_batches: Sequence[Batch],
        *,
        first: int,
        step: int,
        count: Tensor,
        loss_scale: Tensor | None,
    ) -> Sums:
        self.statistics.begin(len(micro_batches))
        self.buffers.keep()
        sums = self.attempt(
            lambda: self.accumulate(
                micro_batches, first=first, step=step, count=count, loss_scale=loss_scale
            )
        )
        self.statistics.finish(count)
        if not self.buffers.learned:
            changed = zip(self.buffers.names, self.buffers.changed(), strict=True)
            self.buffers.learn([name for name, is_changed in changed if is_changed])
        return sums

    def attempt(self, passes: Callable[[], Sums]) -> Sums:
        """Passes whose exchange ends in any case; where a rank ran out of memory, nothing of them is left.

        Raises ShortOfMemoryError then, on all ranks.
        """
        words = ""
        try:
            sums = passes()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            words = words_of(error)
        # The frames of the failed pass, which held its activations, are gone here, and with them the error.
        if words:
            self.module.zero_grad(set_to_none=True)
            free_memory()
            self.join_exchange()
        short = self.short_ranks(bool(words))
        if short:
            self.give_up()
            raise ShortOfMemoryError(short, words)
        return sums

    def join_exchange(self) -> None:
        """What the other ranks wait for and this one has not sent, with any values: the step is thrown away."""

    def short_ranks(self, is_short: bool) -> list[int]:
        """Who ran out of memory in these passes; equal on all ranks."""
        return [0] if is_short else []

    def give_up(self) -> None:
        """Puts the start of the step back."""
        self.statistics.abandon()
        self.buffers.restore()

    def accumulate(
        self,
        micro_batches: Sequence[Batch],
        *,
        first: int,
        step: int,
        count: Tensor,
        loss_scale: Tensor | None,
    ) -> Sums:
        """Forward and backward of every micro-batch, the exchange in the last."""
        total: Sums | None = None
        last = len(micro_batches) - 1
        for i, batch in enumerate(micro_batches):
            seed_micro_batch(self.config.seed, step, first + i, self.devices)
            with contextlib.nullcontext() if i == last else self.skip_exchange():
                with self.clock.phase("forward"):
                    with self.statistics.forward(batch):
                        sums = self._sums(self.forward, batch)
                    self.statistics.add(batch, last=i == last)
                    # Divided before backward: the gradient of the raw sum overflows fp16 under a loss scale.
                    objective = sums.loss / count
                    if loss_scale is not None:
                        objective = objective * loss_scale
                with self.clock.phase("backward"):
                    objective.backward()
            self.statistics.put_back()
            total = sums.detach() if total is None else total + sums.detach()
        assert total is not None, "a step has at least one micro-batch on every rank"
        return total

    def _sums(self, forward: Callable[..., Any], batch: Batch) -> Sums:
        with autocast(self.config.precision, self.devices[0]):
            output = forward(*self._inputs(batch))
            return self.spec.loss(output, batch)

    def _inputs(self, batch: Batch) -> tuple[Any, ...]:
        return self.layout.inputs(self.spec.inputs(batch))

    def evaluate(self, batch: Batch | None) -> Sums:
        if batch is None:
            return Sums.zeros(self.spec.metrics, self.devices[0])
        with torch.inference_mode(), autocast(self.config.precision, self.devices[0]):
            return self.spec.judge(self.module(*self._inputs(batch)), batch)

    def predict(self, batch: Batch | None) -> Output | None:
        if batch is None:
            return None
        with torch.inference_mode(), autocast(self.config.precision, self.devices[0]):
            return self.module(*self._inputs(batch))

    def build_optimizer(self, make: MakeOptimizer) -> Optimizer:
        ever = self.freezing.ever
        return make([(n, p) for n, p in self.module.named_parameters() if n in ever])

    def finish_gradients(
        self, optimizer: Optimizer, *, max_norm: float, loss_scale: Tensor | None, want_norm: bool
    ) -> Gradients:
        if not (max_norm or want_norm or loss_scale is not None):
            return Gradients(None, None)
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if loss_scale is not None:
            torch._foreach_mul_(gradients, loss_scale.reciprocal())
        norm = get_total_norm(gradients)
        if max_norm:
            clip_grads_with_norm_(parameters, max_norm, norm)
        return Gradients(norm, torch.isfinite(norm))

    def named_parameters(self) -> Sequence[tuple[str, Tensor]]:
        return list(self.module.named_parameters())

    def tensors(self, optimizer: Optimizer) -> dict[str, Tensor]:
        values = {f"model/{name}": value for name, value in self.module.state_dict().items()}
        values |= optimizer_tensors(optimizer, self._names)
        return values

    def load_tensors(self, values: Mapping[str, Tensor], optimizer: Optimizer | None) -> None:
        model = {n.removeprefix("model/"): v for n, v in values.items() if n.startswith("model/")}
        load_exactly(self.module, model)
        if optimizer is not None:
            load_optimizer_tensors(values, optimizer, self._names)

    def notes(self) -> Sequence[str]:
        return self.freezing.notes()

    def news(self) -> str | None:
        return self.layout.news()


def build_module(spec: ModelSpec, config: RunConfig, device: torch.device) -> nn.Module:
    """The model on `device`, from the run's seed: the same weights on every rank; its blocks as configured."""
    torch.manual_seed(config.seed)
    module = spec.build()
    if spec.initialize is not None:
        spec.initialize(module)
    module.to(device=device, dtype=parameter_dtype(config.precision))
    # In this order: memory layout (in `Layout`, since inputs follow it), recomputation, compilation; then replicas.
    blocks = spec.blocks(module)
    recompute(module, choose_blocks(module, blocks, config.model.recompute))
    if config.model.compile != "none":
        compile_blocks(module, blocks, config.model.compile)
    return module.train()


def load_exactly(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Loads a module's parameters and buffers; what is missing, unknown or of another shape is a UserError."""
    wanted: Any = module.state_dict()
    check_fit(values, wanted, "check model.name, its options and the number of classes")
    state: Any = OrderedDict(values)
    state._metadata = wanted._metadata  # versions, without which some models refuse their own state
    module.load_state_dict(state)
