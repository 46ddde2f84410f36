"""Send the records of a run to trackers: TensorBoard, MLflow, Weights & Biases, CSV."""

from __future__ import annotations

import argparse

from paceline.cli.parser import Parser
from paceline.errors import ExitCode

EXAMPLES = """\
examples:
  paceline track runs/a --to csv                 runs/a/csv/steps.csv, evaluations.csv, epochs.csv
  paceline track runs/a --to tensorboard,mlflow
  paceline track runs/a --to mlflow --set sinks.mlflow_uri=http://localhost:5000
  paceline track runs/a                          what the run's own trackers have missed

While a run goes on it does this itself: --set records.sinks=tensorboard,csv
"""


def fill(parser: Parser) -> None:
    parser.usage = f"{parser.prog} RUN [OPTIONS]"
    parser.epilog = EXAMPLES
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--to",
        metavar="SINKS",
        default="",
        help="tensorboard, mlflow, wandb, csv, with commas; by default the run's records.sinks",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of [sinks], such as sinks.mlflow_uri=http://localhost:5000",
    )


def run(arguments: argparse.Namespace) -> int:
    from paceline.sinks.send import track

    to = [name.strip() for name in arguments.to.split(",") if name.strip()]
    missed = track(arguments.run, to, sets=arguments.set)
    return int(ExitCode.USER if missed else ExitCode.OK)
