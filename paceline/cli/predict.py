"""Predict the classes or values of images with a run's weights, as a CSV table."""

from __future__ import annotations

import argparse
import sys

from paceline.cli.parser import Parser
from paceline.cli.settings import add_changes, resolve
from paceline.errors import ExitCode, UserError

EXAMPLES = """\
examples:
  paceline predict runs/a photos -o photos.csv         a folder, with all folders in it
  paceline predict runs/a one.jpg two.jpg              files, to standard output
  paceline predict runs/a photos --top 5 --checkpoint best

A file that cannot be read is a row with the reason in its last column, `error`.
exit codes:
  0 predicted, unreadable files are counted on stderr; 2 nothing could be read, or yours to mend
"""


def fill(parser: Parser) -> None:
    parser.epilog = EXAMPLES
    parser.usage = f"{parser.prog} RUN FOLDER_OR_FILES... [OPTIONS]"
    parser.add_argument("run", metavar="RUN", help="a run folder, or one of its checkpoints")
    parser.add_argument(
        "inputs", metavar="FOLDER_OR_FILES", nargs="+", help="image files, or folders of them"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="-", help="a CSV file; - for standard output"
    )
    parser.add_argument(
        "--top", metavar="K", type=int, default=0, help="the K likeliest classes instead of all"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        default="",
        help="final, best, last or step-N; without it final where the run has ended, else last",
    )
    parser.set_defaults(config=None)
    add_changes(parser, ["--ranks", "--device"])


def run(arguments: argparse.Namespace) -> int:
    resolved = resolve(arguments)
    if arguments.top < 0:
        raise UserError(
            f"--top {arguments.top} is no number of classes", "give 1 or more, or 0 for all"
        )
    import contextlib
    from pathlib import Path

    from paceline.judging.predictions import write_csv
    from paceline.judging.run import predicted, writable  # torch comes with it, so only now

    to_stdout = arguments.output == "-"
    target = contextlib.nullcontext(sys.stdout) if to_stdout else writable(Path(arguments.output))
    with target as file:
        with predicted(
            arguments.run, arguments.inputs, checkpoint=arguments.checkpoint, config=resolved
        ) as found:
            write_csv(found, file, top=arguments.top)
    unread = len(found.errors)
    where = "" if to_stdout else f"; {arguments.output} says why"
    if unread == len(found):
        raise UserError(f"none of the {unread} files can be read{where}", "name image files")
    if unread:
        print(f"{unread} of {len(found)} files cannot be read{where}", file=sys.stderr)
    return ExitCode.OK
