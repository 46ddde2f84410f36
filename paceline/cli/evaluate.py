"""Measure a run's weights on its evaluation data or on other data; the run itself stays as it is."""

from __future__ import annotations

import argparse

from paceline.cli.output import emit
from paceline.cli.parser import Parser
from paceline.cli.settings import add_changes, resolve
from paceline.errors import ExitCode

EXAMPLES = """\
examples:
  paceline evaluate runs/a                         its final weights, or its last checkpoint
  paceline evaluate runs/a --checkpoint best       ... its best, or step-460
  paceline evaluate runs/a --data imagefolder:new  on other images of the same classes
  paceline evaluate model.safetensors --config experiment.toml
  paceline evaluate runs/a --json                  for programs
"""


def fill(parser: Parser) -> None:
    parser.epilog = EXAMPLES
    parser.usage = f"{parser.prog} RUN_OR_WEIGHTS [OPTIONS]"
    parser.add_argument(
        "run",
        metavar="RUN_OR_WEIGHTS",
        help="a run folder, one of its checkpoints, or a weights file",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        default="",
        help="final, best, last or step-N; without it final where the run has ended, else last",
    )
    parser.add_argument(
        "--data", metavar="SOURCE", help="other evaluation data, as data.eval_source names it"
    )
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", help="where to write; by default RUN/evaluations/NAME"
    )
    parser.add_argument(
        "--json", action="store_true", help="print evaluation.json and nothing else"
    )
    parser.add_argument(
        "--config", metavar="FILE", help="settings, for weights outside of a run folder"
    )
    add_changes(parser, ["--model", "--ranks", "--device"])


def run(arguments: argparse.Namespace) -> int:
    resolved = resolve(arguments)
    from paceline.judging.run import evaluate  # torch comes with it, so only now
    from paceline.ui.evaluation import evaluation_lines

    found = evaluate(
        arguments.run,
        checkpoint=arguments.checkpoint,
        config=resolved,
        data=arguments.data,
        output=arguments.output,
    )
    if arguments.json:
        import json

        emit(json.dumps(found.to_json(), indent=1) + "\n")
        return ExitCode.OK
    lines = evaluation_lines(found.to_json(), found.confused())
    if found.folder is not None:
        lines.append(f"written to {found.folder / 'evaluation.json'}")
    emit("\n".join(lines) + "\n")
    return ExitCode.OK
