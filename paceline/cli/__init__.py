"""The command line: finds the command, runs it, and turns whatever ends it into an exit code.

Each command is a module with `fill(parser)` and `run(arguments) -> int`; only the chosen one is
imported, and none imports torch before it has to.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import paceline
from paceline.cli.output import discard, emit, escape_what_cannot_be_encoded, reader_is_gone
from paceline.cli.parser import Parser
from paceline.errors import ExitCode, PacelineError, UserError, nearest


class Command(NamedTuple):
    """Where a command lives, and what it does in one line."""

    module: str
    help: str


COMMANDS = {
    "train": Command("paceline.cli.train", "train a model, or resume a run exactly"),
    "evaluate": Command("paceline.cli.evaluate", "measure a run's weights, on any data"),
    "predict": Command("paceline.cli.predict", "classes or values of images, as a CSV table"),
    "track": Command("paceline.cli.track", "send the records of a run to a tracker"),
    "recipes": Command("paceline.cli.recipes", "list the experiments that ship with Paceline"),
    "data": Command("paceline.cli.data", "what is in a data set, and what the model sees of it"),
    "config": Command("paceline.cli.config", "print the settings and where each came from"),
}

ABOUT = "Trains a PyTorch model on every GPU you have, at the speed the hardware allows."

SIGPIPE_CODE = 141  # what a shell reports of any program that writes into a closed pipe

EXIT_CODES = """\
exit codes:
  0 finished; 1 a defect of Paceline; 2 yours to mend, the message says how;
  3 a rank failed and restarts did not help; 4 the loss is no longer finite;
  75 stopped and saved, go on with --resume; 130 interrupted twice, not saved"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises."""
    escape_what_cannot_be_encoded()
    try:
        code = _run(sys.argv[1:] if argv is None else list(argv))
        emit("")
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the last resort: shown whole, as our own defect
        if isinstance(error, BrokenPipeError) and reader_is_gone():
            discard()
            return SIGPIPE_CODE
        import traceback

        traceback.print_exc()
        print("error: this is a defect of Paceline; please report the lines above", file=sys.stderr)
        return int(ExitCode.INTERNAL)
    return code


def _run(argv: list[str]) -> int:
    if not argv or argv[0].startswith("-"):
        return _run_without_command(argv)
    name, *rest = argv
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}", nearest(name, list(COMMANDS)))
    command = importlib.import_module(COMMANDS[name].module)
    parser = Parser(
        prog=f"paceline {name}", usage=f"paceline {name} [OPTIONS]", description=command.__doc__
    )
    command.fill(parser)
    try:
        arguments = parser.parse(rest)
    except SystemExit as exit:  # argparse leaves so after --help
        return _code_of(exit)
    return int(command.run(arguments))


def _run_without_command(argv: list[str]) -> int:
    """`paceline`, `paceline --help`, `paceline --version`."""
    names = "\n".join(f"  {name:<10}{command.help}" for name, command in COMMANDS.items())
    parser = Parser(
        prog="paceline",
        usage="paceline COMMAND [OPTIONS]",
        description=f"{ABOUT}\n\ncommands:\n{names}",
        epilog=f"`paceline COMMAND --help` says more of each.\n\n{EXIT_CODES}",
    )
    parser.add_argument("--version", action="version", version=f"paceline {paceline.__version__}")
    try:
        parser.parse(argv)
    except SystemExit as exit:
        return _code_of(exit)
    parser.print_help()
    return int(ExitCode.OK)


def _code_of(exit: SystemExit) -> int:
    return exit.code if isinstance(exit.code, int) else int(ExitCode.OK)
