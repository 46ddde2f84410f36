"""Wall time to 92% test accuracy on Fashion-MNIST with torchvision's ResNet-18: Paceline's recipe against a tutorial.

Both train the same model on the same 60,000 images and are judged by the same 10,000 after each epoch, until the first
evaluation that reaches the target. Each run is a command of its own, timed from its start to that evaluation: imports,
starting ranks and evaluations count. Seeds alternate between the two, so that a machine that drifts favours neither.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from common import conditions, parser, show_conditions, show_table, write_json

from paceline.records.folder import RunFolder
from paceline.records.reader import latest, read

RECIPE = Path(__file__).with_name("fashion_mnist.toml")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
GOAL = 3.0


@dataclass(frozen=True)
class Run:
    """One training. seconds: to the evaluation that reached the target; None: none did. epochs: that were begun."""

    seed: int
    seconds: float | None
    epochs: int
    accuracies: list[float]


def run_tutorial(seed: int, options: argparse.Namespace, folder: Path) -> Run:
    script = Path(__file__).with_name("tutorial.py")
    command = [sys.executable, str(script), str(folder), "--seed", str(seed)]
    command += ["--epochs", str(options.epochs), "--target", str(options.target)]
    command += ["--samples", str(options.samples)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.monotonic() - started
    epochs = [json.loads(line) for line in done.stdout.splitlines()]
    accuracies = [epoch["accuracy"] for epoch in epochs]
    reached = accuracies[-1] >= options.target
    return Run(seed, seconds if reached else None, len(epochs), accuracies)


def run_paceline(seed: int, options: argparse.Namespace, folder: Path) -> Run:
    run = RunFolder(Path(tempfile.mkdtemp(dir=folder)) / "run")
    sets = [f"seed={seed}", f"train.target={options.target}", f"data.folder={str(folder)!r}"]
    sets += options.set
    if options.samples:
        sets += [f"data.epoch_samples={options.samples}", "train.epochs=2"]
    command = [sys.executable, "-m", "paceline", "train", str(RECIPE), "--run", str(run.path)]
    command += [part for setting in sets for part in ("--set", setting)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    found = list(latest(read(run.records(0)), "eval"))
    accuracies = [record["metrics"]["accuracy"] for record in found]
    reached = accuracies[-1] >= options.target
    return Run(seed, seconds if reached else None, len(found), accuracies)


def lay_out(folder: Path, source: Path) -> None:
    """The files as torchvision wants them."""
    raw = folder / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for packed in source.glob("*.gz"):
        with gzip.open(packed) as given, open(raw / packed.stem, "wb") as unpacked:
            shutil.copyfileobj(given, unpacked)


def show(runs: dict[str, list[Run]]) -> list[str]:
    rows = []
    for name, done in runs.items():
        for run in done:
            reached = "not reached" if run.seconds is None else f"{run.seconds:.0f} s"
            best = f"{max(run.accuracies):.2%}"
            rows.append([name, str(run.seed), reached, str(run.epochs), best])
    show_table(["", "seed", "time to target", "epochs", "best accuracy"], rows)
    ours, theirs = ([run.seconds for run in runs[name]] for name in ("paceline", "tutorial"))
    if None in ours or None in theirs:
        return ["no verdict: a run did not reach the target"]
    ratios = [b / a for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} seeds"
    middle = statistics.median(ratios)
    met = "met" if min(ratios) >= GOAL else "not met by each seed"
    return [f"paceline is {middle:.2f} times as fast ({spread}); the goal of {GOAL:.0f} is {met}"]


def parse() -> argparse.Namespace:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--target", type=float, default=0.92, help="test accuracy")
    made.add_argument("--epochs", type=int, default=30, help="the tutorial's, at most")
    made.add_argument("--samples", type=int, default=0, help="of the training set; 0: all")
    made.add_argument("--data", type=Path, default=DEBIAN, help="the folder with the .gz files")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of Paceline")
    options = made.parse_args()
    if options.quick:
        options.seeds, options.target, options.epochs, options.samples = 1, 0.3, 2, 1200
    return options


def main() -> None:
    options = parse()
    found = conditions()
    show_conditions(found)
    runs: dict[str, list[Run]] = {"paceline": [], "tutorial": []}
    ways = {"paceline": run_paceline, "tutorial": run_tutorial}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(folder, options.data)
        for seed in range(options.seeds):
            for way in sorted(ways, reverse=bool(seed % 2)):
                runs[way].append(ways[way](seed, options, folder))
                print(f"{way}, seed {seed}: {runs[way][-1]}", file=sys.stderr, flush=True)
    for text in show(runs):
        print(text)
    if options.json:
        figures = {name: [asdict(run) for run in done] for name, done in runs.items()}
        write_json(options.json, {"conditions": found, "load": os.getloadavg(), "runs": figures})


if __name__ == "__main__":
    main()
