"""Print the settings of a run and where each value came from; trains nothing."""

from __future__ import annotations

import argparse

from paceline.cli.output import emit
from paceline.cli.parser import Parser
from paceline.cli.settings import add_settings, resolve

EXAMPLES = """\
examples:
  paceline config                               every setting with its default
  paceline config experiment.toml --epochs 30   what this command line would train with
  paceline config experiment.toml | grep changed
  paceline config > experiment.toml             a file to start from
"""


def fill(parser: Parser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--format",
        choices=["toml", "json"],
        default="toml",
        help="toml: a file that can be used again, with remarks (default); json: for programs",
    )
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    resolved = resolve(arguments)
    from paceline.config.show import as_json, as_toml

    emit(as_json(resolved) if arguments.format == "json" else as_toml(resolved))
    return 0
