"""Tries micro-batches for `parallel.micro_batch = "auto"`: one rank's part, in processes started for that.

The model, the strategy, the precision and the optimizer are the run's own; the steps are real ones, of two passes
each, which is enough to hold everything that a step holds. What is trained is thrown away with the process.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from paceline.config.schema import RunConfig
from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.loop.room import Room
from paceline.loop.setup import Objects, Prepared, prepare, resolve
from paceline.loop.step import train_step
from paceline.parallel.budget import leave_free
from paceline.parallel.memory import ShortOfMemoryError, free_memory, is_out_of_memory
from paceline.parallel.place import Split
from paceline.parallel.statistics import has_groups
from paceline.parallel.world import join, leave
from paceline.records.folder import RunFolder
from paceline.records.memory import memory_bytes, reset_memory
from paceline.records.writer import RecordWriter

PASSES = 2


class FixedRoom(Room):
    """A size that either fits or does not."""

    def shrink(self, error: ShortOfMemoryError, *, has_groups: bool) -> None:
        raise error


def probe(
    folder: RunFolder, config: RunConfig, sizes: Sequence[int], *, objects: Objects | None = None
) -> None:
    """Tries micro-batches, given from small to large, until one does not fit; records what came of each."""
    world = join(config.device, timeout_s=config.launch.timeout_s)
    whole = dataclasses.replace(config.parallel, micro_batch=0)
    config = dataclasses.replace(config, parallel=whole)
    prepared = prepare(resolve(config, world.num_ranks), world, objects or Objects())
    _refuse_groups(prepared)
    # The last epoch takes the most memory, where layers are unfrozen one after the other.
    prepared.training.carried.begin_epoch(prepared.config.train.epochs - 1)
    batch, evaluated = _batches(prepared)
    leave_free(world.device, world.local_num_ranks, config.memory.margin)
    with RecordWriter(folder.records(world.rank)) as records:
        for step, size in enumerate(sizes):
            reset_memory(world.device)
            short = try_size(prepared, size, batch, evaluated, PASSES * step)
            memory = memory_bytes(world.device)
            records.write("probe", micro_batch=size, short=short, memory_bytes=memory)
            records.flush()
            if short:
                break
    leave()


def _refuse_groups(prepared: Prepared) -> None:
    accepts = prepared.config.memory.shrink == "always"
    if not accepts and any(has_groups(part) for part in prepared.training.carried.parts):
        raise UserError(
            "parallel.micro_batch = 'auto' would let memory choose BatchNorm's statistics group,"
            " and with it the experiment",
            "give a number, or set memory.shrink = 'always' to accept any group",
        )


def _batches(prepared: Prepared) -> tuple[Batch, Batch | None]:
    """This rank's share of the first step and of an evaluation, on its device."""
    loader, rows = prepared.loader, prepared.config.train.eval_batch
    steps = prepared.on_device(loader.epoch(0))
    (batch,) = next(steps).micro_batches
    steps.close()  # type: ignore[attr-defined]
    if prepared.data.evaluation is None:
        return batch, None
    items = prepared.on_device(loader.evaluation(rows))
    evaluated = next(items)
    items.close()  # type: ignore[attr-defined]
    return batch, evaluated


def try_size(
    prepared: Prepared, size: int, batch: Batch, evaluated: Batch | None, step: int
) -> list[int]:
    """The ranks that ran out of memory with micro-batches of `size` samples a device; none: it fits."""
    training, place = prepared.training, prepared.place
    rows = size * place.devices_per_process
    training.room = FixedRoom(prepared.config.memory, Split(rows, 1), place)
    parts = batch.cut(rows)[:PASSES]
    try:
        for number in (step, step + 1):  # the optimizer's state is there from the second on
            count = max(1, sum(part.num_real for part in parts) * place.num_data_ranks)
            train_step(training, parts, step=number, count=count)
    except ShortOfMemoryError as error:
        return error.ranks
    fits = evaluated is None or _evaluates(
        prepared, evaluated.cut(prepared.config.train.eval_batch or rows)[0]
    )
    return training.world.which(not fits)


def _evaluates(prepared: Prepared, batch: Batch) -> bool:
    parts = prepared.training.carried.parts
    for part in parts:
        part.eval()
    try:
        prepared.training.carried.evaluate(batch)
        return True
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    finally:
        for part in parts:
            part.train()
    free_memory()
    return False


def where_from(folder: RunFolder) -> list[str]:
    """Where the run's micro-batch came from, if it was found by trying."""
    if not folder.probe.exists():
        return []
    found = json.loads(folder.probe.read_text(encoding="utf-8"))
    failed = [each["micro_batch"] for each in found["tried"] if each["short"]]
    beyond = f"{min(failed)} did not fit" if failed else "a device's whole share"
    return [
        f"parallel.micro_batch = {found['micro_batch']} was found by trying, with"
        f" {found['margin']:.0%} of the free memory left over ({beyond})"
    ]
