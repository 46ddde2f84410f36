"""Step time of Paceline's loop against a hand-written DDP loop, Lightning and Accelerate: same model, data and run.

All loops live in the same rank processes and take turns of a few steps, in balanced order; docs/benchmarks.md tells
how and why. `pip install paceline[benchmarks]` brings the peers.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import warnings
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from common import (
    Ratio,
    balanced_orders,
    conditions,
    paired_ratio,
    parser,
    quartiles,
    show_conditions,
    show_table,
    write_json,
)
from loops import (
    ACCELERATE,
    AGAIN,
    COMMON,
    LIGHTNING,
    LOOPS,
    MODELS,
    PACELINE,
    PLAIN,
    Case,
    watch_optimizers,
)
from turns import Block, TurnTaking

from paceline.launch.placement import place, share_of
from paceline.parallel.world import choose_device

TARGET = 1.01  # upper bound of the ratio to the hand-written loop
SHORTEST_STEP_S = 0.05

Measured = dict[str, list[Block]]  # by loop, a block a round


def measure_rank(rank: int, case: Case, port: int, folder: str) -> None:
    """In a rank's process: sets the loops up and lets them take turns; leaves its blocks in a file."""
    die_with_parent()
    if case.num_ranks > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(case.num_ranks),
            "LOCAL_WORLD_SIZE": str(case.num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    warnings.filterwarnings("ignore", module="lightning|accelerate|torch.utils.data")
    device = choose_device("auto", rank)
    share = share_of(
        rank, case.num_ranks, threads=case.threads, bind=True, on_gpus=device.type == "cuda"
    )
    place(share)
    torch.set_num_threads(share.threads)
    watch_optimizers()
    synchronize = partial(torch.cuda.synchronize, device) if device.type == "cuda" else do_nothing
    loops = {
        name: TurnTaking(partial(body, case, device, rank, Path(folder)), synchronize, COMMON)
        for name, body in LOOPS.items()
    }
    for loop in loops.values():
        loop.take(0)
    for loop in loops.values():
        loop.take(case.warmup)
    gc.collect()
    gc.freeze()  # what the libraries hold is nobody's garbage to look through in a timed step
    blocks: dict[str, list[dict[str, Any]]] = {name: [] for name in loops}
    for order in itertools.islice(itertools.cycle(balanced_orders(len(loops))), case.rounds):
        for name in (list(loops)[index] for index in order):
            if dist.is_initialized():
                dist.barrier()
            blocks[name].append(asdict(loops[name].take(case.steps)))
    for loop in reversed(loops.values()):
        loop.end()
    (Path(folder) / f"rank-{rank}.json").write_text(json.dumps(blocks))


def die_with_parent() -> None:
    """A benchmark that is killed leaves no rank behind."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def do_nothing() -> None:
    """A CPU has done its work when its functions return."""


# Else glibc gives freed memory back in every step and takes it again, page by page: by chance more in one loop than in
# another, and up to a third of a small step.
KEEP_FREED_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}


def measure(case: Case) -> Measured:
    """Every block as its slowest rank saw it."""
    os.environ |= KEEP_FREED_MEMORY
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            measure_rank, (case, free_port(), folder), nprocs=case.num_ranks
        )
        ranks = [json.loads(path.read_text()) for path in Path(folder).glob("rank-*.json")]
    return {
        name: [
            max((Block(**block) for block in of_ranks), key=lambda block: block.seconds)
            for of_ranks in zip(*(rank[name] for rank in ranks), strict=True)
        ]
        for name in LOOPS
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def compare(measured: Measured) -> dict[str, dict[str, Ratio]]:
    """Ratios of whole blocks, so that what a loop does once in a while counts too."""
    pairs = [(PACELINE, other) for other in (PLAIN, LIGHTNING, ACCELERATE)]
    pairs += [(other, PLAIN) for other in (LIGHTNING, ACCELERATE, AGAIN)]
    seconds = {name: [sum(b.step_s) for b in blocks] for name, blocks in measured.items()}
    alike = held_alike(measured)
    return {
        f"{a} / {b}": {
            "seconds": paired_ratio(seconds[a], seconds[b]),
            "held_alike": paired_ratio(alike[a], alike[b]),
        }
        for a, b in pairs
    }


def held_alike(measured: Measured) -> dict[str, list[float]]:
    """Seconds of the blocks as if what all loops have in common took as long in each: its median over all of them.

    It is the same work in all loops and nearly the whole step, so its noise hides what the loops add. On a GPU,
    where the host runs ahead, this says nothing.
    """
    every = [block for blocks in measured.values() for block in blocks]
    common = statistics.median(sum(b.step_s) - sum(b.own_s) for b in every)
    return {name: [common + sum(b.own_s) for b in blocks] for name, blocks in measured.items()}


def median_step_s(blocks: list[Block]) -> float:
    return statistics.median(s for block in blocks for s in block.step_s)


def show(case: Case, measured: Measured, ratios: dict[str, dict[str, Ratio]]) -> None:
    unit = "rank" if case.num_ranks == 1 else "ranks"
    print(
        f"\n{case.num_ranks} {unit}, {case.model} at {case.image_size} pixels, fp32, {case.batch} samples a rank: "
        f"{case.rounds} rounds of {case.steps} steps each"
    )
    rows = []
    for name, blocks in measured.items():
        low, middle, high = (1000 * s for s in quartiles([s for b in blocks for s in b.step_s]))
        own = 1000 * statistics.fmean([s for b in blocks for s in b.own_s])
        rows.append([name, f"{middle:.2f}", f"{low:.2f} – {high:.2f}", f"{own:.2f}"])
    show_table(["", "median step, ms", "quartiles, ms", "loop's own, mean, ms"], rows)
    print()
    rows = [[name, *map(str, kinds.values())] for name, kinds in ratios.items()]
    show_table(["ratio [95% bounds]", "of step times", "common work held alike"], rows)
    for text in costs(measured) if case.model == "bare" else verdicts(measured, ratios):
        print(text)


def costs(measured: Measured) -> list[str]:
    """Of a model that computes next to nothing: what each loop adds to a step."""
    plain = median_step_s(measured[PLAIN])
    added = {name: 1e6 * (median_step_s(blocks) - plain) for name, blocks in measured.items()}
    return [f"{name} adds {us:.0f} µs to a hand-written step" for name, us in added.items() if us]


def verdicts(measured: Measured, ratios: dict[str, dict[str, Ratio]]) -> list[str]:
    target = ratios[f"{PACELINE} / {PLAIN}"]
    texts = [
        f"target {'met' if ratio.high <= TARGET else 'not met'} by {name}: upper bound {ratio.high:.4f}"
        f" against the hand-written loop, {TARGET} asked"
        for name, ratio in zip(
            ("step times", "common work held alike"), target.values(), strict=True
        )
    ]
    for peer in (LIGHTNING, ACCELERATE):
        ratio = ratios[f"{PACELINE} / {peer}"]["seconds"]
        slower, faster = ratio.low > 1, ratio.high < 1
        word = (
            "slower than"
            if slower
            else "faster than"
            if faster
            else "not slower, within noise, than"
        )
        texts.append(f"paceline is {word} {peer}")
    shortest = min(map(median_step_s, measured.values()))
    if shortest < SHORTEST_STEP_S:
        texts.append(
            f"warning: steps of {shortest * 1000:.0f} ms are too short for such a ratio: raise --batch"
        )
    return texts


def cases(arguments: argparse.Namespace) -> list[Case]:
    on_gpus = torch.cuda.is_available()
    devices = torch.cuda.device_count() if on_gpus else os.cpu_count() or 1
    asked = arguments.ranks or [n for n in (1, 2) if n <= devices]
    return [
        Case(
            model=arguments.model,
            num_ranks=num_ranks,
            threads=arguments.threads,
            batch=arguments.batch or (256 if on_gpus else 8),
            image_size=arguments.image_size or (224 if on_gpus else 32),
            rounds=6 if arguments.quick else arguments.rounds,
            steps=2 if arguments.quick else arguments.steps,
            warmup=3 if arguments.quick else 10,
        )
        for num_ranks in asked
    ]


def parse() -> argparse.Namespace:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--ranks", type=int, nargs="+", help="default: 1, and 2 where there are 2")
    made.add_argument("--threads", type=int, default=0, help="a rank; 0: as many as it has cores")
    made.add_argument(
        "--model", choices=MODELS, default="resnet18", help="bare: the loop's own cost"
    )
    made.add_argument("--rounds", type=int, default=100, help="each loop takes a turn in each")
    made.add_argument("--steps", type=int, default=3, help="of a loop in a turn")
    made.add_argument("--batch", type=int, default=0, help="samples a rank; 0: 8, on GPUs 256")
    made.add_argument("--image-size", type=int, default=0, help="pixels; 0: 32, on GPUs 224")
    return made.parse_args()


def as_json(case: Case, measured: Measured, ratios: dict[str, dict[str, Ratio]]) -> dict[str, Any]:
    return {
        "case": asdict(case),
        "ratios": {
            name: {kind: asdict(ratio) for kind, ratio in kinds.items()}
            for name, kinds in ratios.items()
        },
        "blocks": {name: [asdict(block) for block in blocks] for name, blocks in measured.items()},
    }


def main() -> None:
    arguments = parse()
    found = conditions("lightning", "accelerate", "greenlet")
    show_conditions(found)
    results = []
    for case in cases(arguments):
        measured = measure(case)
        ratios = compare(measured)
        show(case, measured, ratios)
        results.append(as_json(case, measured, ratios))
    if arguments.json:
        write_json(arguments.json, {"conditions": found, "results": results})


if __name__ == "__main__":
    main()
