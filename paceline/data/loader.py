"""What one rank needs for each optimizer step and each evaluation batch, in order.

Which samples: `order.py`. How one micro-batch is made: `assemble.py`. In which process: `workers.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch.utils import _pytree as pytree

from paceline.data import order
from paceline.data.assemble import Assembler, Loaded, Task
from paceline.data.augment import Augment, NoAugment
from paceline.data.batch import Batch
from paceline.data.sampling import Sampling
from paceline.data.sources.base import Source
from paceline.data.workers import WorkerPool, available_cores, check_shared_memory, choose_workers


@dataclass(frozen=True, kw_only=True)
class StepBatches:
    """What this rank does in one optimizer step.

    position, stop: the step takes the positions [position, stop) of the epoch's order, over all ranks.
    micro_batches: at least one; a rank without samples has a filler.
    """

    epoch: int
    position: int
    stop: int
    micro_batches: list[Batch]

    @property
    def num_global(self) -> int:
        """Samples of the step over all ranks, skipped ones included."""
        return self.stop - self.position

    @property
    def num_real(self) -> int:
        """Samples of this rank with weight 1."""
        return sum(batch.num_real for batch in self.micro_batches)

    @property
    def num_skipped(self) -> int:
        """Samples of this rank that could not be read: a real index, weight 0."""
        return len(self.indices) - self.num_real

    @property
    def indices(self) -> list[int]:
        """This rank's samples, skipped ones included, fillers not: over all ranks, the ledger of the step."""
        return [i for batch in self.micro_batches for i in batch.indices.tolist() if i >= 0]

    def map(self, function: Callable[[Batch], Batch]) -> StepBatches:
        return StepBatches(
            epoch=self.epoch,
            position=self.position,
            stop=self.stop,
            micro_batches=[function(batch) for batch in self.micro_batches],
        )


class Loader:
    """Micro-batches of one data rank.

    micro_batch: 0 for one pass a step; with the ranks, it divides the global batch.
    evaluation: what `evaluation()` goes through.
    workers: processes; 0: in this one, -1: as many as help, of `cores` (0: those this process may use).
    num_local_ranks: ranks that share this machine's shared memory, and its cores where `cores` is 0.
    pin_memory: for a device's faster copies.
    sampling: which samples an epoch has; without it, each once.

    With loader processes only one iterator is in use at a time: `epoch()` is finished or closed before `evaluation()`.
    """

    def __init__(
        self,
        source: Source,
        *,
        seed: int,
        global_batch: int,
        micro_batch: int = 0,
        data_rank: int = 0,
        num_data_ranks: int = 1,
        evaluation: Source | None = None,
        augment: Augment | None = None,
        workers: int = 0,
        prefetch: int = 2,
        on_bad_sample: Literal["error", "skip"] = "error",
        pin_memory: bool = False,
        cores: int = 0,
        num_local_ranks: int = 1,
        sampling: Sampling | None = None,
    ) -> None:
        self._seed = seed
        self._sampling = sampling or Sampling(len(source), len(source))
        self._num_samples = self._sampling.epoch_samples
        self._num_evaluation = 0 if evaluation is None else len(evaluation)
        self._global_batch = global_batch
        self._micro_batch = micro_batch or global_batch // num_data_ranks
        assert global_batch % (num_data_ranks * self._micro_batch) == 0, (
            f"{global_batch} samples cannot be split over {num_data_ranks} ranks in micro-batches"
            f" of {self._micro_batch}; the caller checks that"
        )
        self._rank, self._num_ranks = data_rank, num_data_ranks
        self._pin = pin_memory
        self._assembler = Assembler(
            train=source,
            evaluation=evaluation,
            augment=augment or NoAugment(),
            seed=seed,
            skip_bad=on_bad_sample == "skip",
        )
        self.num_workers = workers
        if workers < 0:
            cores = cores or available_cores() // num_local_ranks
            self.num_workers = choose_workers(source.in_memory, cores)
        self._filler: Batch | None = None
        self._pool: WorkerPool | None = None
        if self.num_workers:
            self._check_shared_memory(prefetch, num_local_ranks)
            self._pool = WorkerPool(
                self._assembler,
                num_workers=self.num_workers,
                prefetch=prefetch,
                rank=data_rank,
                pin_memory=pin_memory,
            )

    @property
    def epoch_samples(self) -> int:
        """Positions of an epoch; with other sampling than shuffling, a sample may stand at several."""
        return self._num_samples

    @property
    def steps_per_epoch(self) -> int:
        return order.steps_per_epoch(self._num_samples, self._global_batch)

    def epoch(self, epoch: int, start_position: int = 0) -> Iterator[StepBatches]:
        """The steps of an epoch from a position on. Given up before its end, it ends the loader processes."""
        indices, draws = self._sampling.epoch(self._seed, epoch)
        positions = self._positions(start_position)
        ahead, steps = itertools.tee(
            (position, self._own_chunks(position)) for position in positions
        )
        tasks = (
            Task(indices[chunk.start : chunk.stop], epoch, draws=draws[chunk.start : chunk.stop])
            for _, chunks in ahead
            for chunk in chunks
        )
        loaded = self._run(tasks)
        try:
            for position, chunks in steps:
                batches = [self._as_batch(next(loaded)) for _ in chunks]
                yield StepBatches(
                    epoch=epoch,
                    position=position,
                    stop=min(position + self._global_batch, self._num_samples),
                    micro_batches=batches or [self._filler_batch()],
                )
            left_over = next(loaded, None)
            assert left_over is None, "more micro-batches than steps"
        finally:
            loaded.close()

    def evaluation(self, eval_batch: int = 0) -> Iterator[Batch | None]:
        """This rank's share of the evaluation samples, each once; then None until every rank had as many items.

        eval_batch: samples of a batch; 0: as many as in a micro-batch of training.
        """
        size = eval_batch or self._micro_batch
        shares = [
            order.evaluation_share(self._num_evaluation, rank, self._num_ranks)
            for rank in range(self._num_ranks)
        ]
        num_items = max(-(-len(share) // size) for share in shares)
        share = np.arange(shares[self._rank].start, shares[self._rank].stop)
        starts = range(0, len(share), size)
        loaded = self._run(Task(share[start : start + size], None) for start in starts)
        try:
            for one in loaded:
                yield self._as_batch(one)
            for _ in range(num_items - len(starts)):
                yield None
        finally:
            loaded.close()

    def first_samples(self, count: int) -> Batch:
        """The first samples of the first epoch as the model gets them, made in this process."""
        indices = order.permutation(self._seed, 0, self._num_samples)[:count]
        return self._assembler(Task(indices, 0)).batch()

    def close(self) -> None:
        """Ends the loader processes."""
        if self._pool is not None:
            self._pool.close()

    def _positions(self, start: int) -> range:
        return range(start, self._num_samples, self._global_batch)

    def _own_chunks(self, position: int) -> list[range]:
        chunks = order.step_chunks(
            position, self._num_samples, self._global_batch, self._micro_batch
        )
        return order.rank_chunks(
            chunks, self._rank, self._num_ranks, self._global_batch, self._micro_batch
        )

    def _run(self, tasks: Iterable[Task]) -> Any:
        """A generator of `Loaded`, one a task."""
        return self._pool.run(tasks) if self._pool else (self._assembler(task) for task in tasks)

    def _as_batch(self, loaded: Loaded) -> Batch:
        batch = loaded.batch()
        return batch.pin() if self._pin and self._pool is None else batch

    def _filler_batch(self) -> Batch:
        if self._filler is None:
            self._filler = self._assembler.filler().batch()
        return self._filler

    def _check_shared_memory(self, prefetch: int, num_local_ranks: int) -> None:
        leaves = pytree.tree_leaves(self._assembler.template().data)
        row_bytes = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
        held = self.num_workers * prefetch + 1
        needed = held * self._micro_batch * row_bytes * num_local_ranks
        check_shared_memory(needed, self.num_workers)
