"""Say what is in a run's data; with --show, look through all of it and draw what the model sees."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from paceline.cli.output import emit
from paceline.cli.parser import Parser
from paceline.cli.settings import add_settings, resolve
from paceline.errors import UserError

EXAMPLES = """\
examples:
  paceline data --data imagefolder:photos --set data.image_size=224          counts
  paceline data experiment.toml --show            ... and data-NAME/data.png, data.json
  paceline data experiment.toml --show --limit 5000 --out look
"""


def fill(parser: Parser) -> None:
    parser.epilog = EXAMPLES
    add_settings(parser)
    group = parser.add_argument_group("looking")
    group.add_argument(
        "--show",
        action="store_true",
        help="read every sample: sizes, mean and standard deviation, unreadable files, duplicates, "
        "images in both training and evaluation; and draw samples as training augments them",
    )
    group.add_argument(
        "--out",
        metavar="FOLDER",
        help="with --show: where data.png and data.json go; without it, data-SOURCE here",
    )
    group.add_argument(
        "--limit", metavar="N", help="with --show: read N samples of each part, evenly spread"
    )


def run(arguments: argparse.Namespace) -> int:
    resolved = resolve(arguments)
    if not arguments.show and (arguments.out or arguments.limit):
        raise UserError("--out and --limit belong to --show", "add --show")
    limit = _limit(arguments.limit)
    out = None
    if arguments.show:
        out = Path(arguments.out or "data-" + _slug(resolved.config.data.source))
    from paceline.data.inspect import as_table, inspect_data  # torch comes with it, so only now

    page = inspect_data(resolved.config, out=out, limit=limit, progress=_Progress())
    emit(as_table(page))
    if out is not None:
        emit(f"\nwrote {out / 'data.json'}\n")
        if "picture" in page:
            emit(f"wrote {out / page['picture']}\n")
    return 0


def _limit(text: str | None) -> int:
    if text is None:
        return 0
    if not text.isdecimal() or int(text) == 0:
        raise UserError(
            f"--limit {text!r} is no number of samples", "write, for example, --limit 1000"
        )
    return int(text)


def _slug(source: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", source).strip("-.") or "set"


class _Progress:
    """A line on stderr that is written over, on a terminal; elsewhere one every half minute."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._every_s = 0.2 if self._is_terminal else 30.0
        self._next = time.monotonic() + self._every_s

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if sys.stderr is None or (now < self._next and done < total):
            return
        if self._is_terminal:
            end = "\r" if done < total else "\r\x1b[K"
            print(f"reading {done:,} of {total:,}", end=end, file=sys.stderr, flush=True)
        elif done < total:
            print(f"reading {done:,} of {total:,}", file=sys.stderr, flush=True)
        self._next = now + self._every_s
