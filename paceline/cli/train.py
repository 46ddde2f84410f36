"""Train a model on every device there is, or resume a run exactly where it stopped."""

from __future__ import annotations

import argparse

from paceline.cli import EXIT_CODES
from paceline.cli.parser import Parser
from paceline.cli.settings import add_settings, resolve
from paceline.errors import ExitCode

EXAMPLES = """\
examples:
  paceline train                                  a small ResNet on handwritten digits
  paceline train --epochs 5 --ranks 1             ... shorter, in one process
  paceline train experiment.toml --run runs/a     settings from a file, into this folder
  paceline train --data imagefolder:photos --model resnet18 --set data.image_size=224
  paceline train --resume runs/a                  go on with that run
"""


def fill(parser: Parser) -> None:
    parser.epilog = f"{EXAMPLES}\n{EXIT_CODES}"
    add_settings(parser)
    group = parser.add_argument_group("run")
    group.add_argument("--run", metavar="FOLDER", help="the run folder; without it a new one")
    group.add_argument(
        "--resume",
        metavar="auto|PATH",
        help="auto: the newest unfinished run, or a new one; PATH: a run folder or one of its "
        "checkpoints; without CONFIG, with that run's settings",
    )
    group.add_argument("--quiet", action="store_true", help="print no progress, only the result")


def run(arguments: argparse.Namespace) -> int:
    resolved = resolve(arguments)
    from paceline.api import train  # torch comes with it, so only now
    from paceline.records.folder import RunFolder
    from paceline.ui.ending import show_end

    result = train(resolved, run=arguments.run, resume=arguments.resume, show=not arguments.quiet)
    show_end(RunFolder(result.folder))
    return ExitCode.RESUME if result.status == "stopped" else ExitCode.OK
