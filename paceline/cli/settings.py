"""The arguments that say what the settings are: CONFIG, the ten flags and --set, in their order."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.cli.parser import Parser
from paceline.config.flags import FLAGS

if TYPE_CHECKING:
    from paceline.config.load import Resolved


class _Keep(argparse.Action):
    """Keeps flags and --set in one list, so that the later one wins, whichever it is."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        namespace.changes = [*namespace.changes, (option, values)]


def add_settings(parser: Parser) -> None:
    parser.usage = f"{parser.prog} [CONFIG] [OPTIONS]"
    group = parser.add_argument_group(
        "settings", "defaults < CONFIG < flags and --set, of which the later one wins"
    )
    group.add_argument(
        "config", metavar="CONFIG", nargs="?", help="a TOML file with settings, or recipe:NAME"
    )
    add_changes(parser, list(FLAGS), group)


def add_changes(parser: Parser, names: Sequence[str], group: Any = None) -> None:
    """These flags of settings, and --set. group: of the parser, where they belong together."""
    group = parser if group is None else group
    for name in names:
        flag = FLAGS[name]
        text = f"{flag.key}: {flag.help}"
        group.add_argument(name, metavar=flag.metavar, action=_Keep, help=text, dest="changes")
    group.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action=_Keep,
        help="any setting by its key, such as --set optim.momentum=0.8; may be repeated "
        "(`paceline config` lists the keys)",
        dest="changes",
    )
    parser.set_defaults(changes=[])


def resolve(arguments: argparse.Namespace) -> Resolved:
    from paceline.config.assign import assign_text, parse_set  # not needed to answer --help
    from paceline.config.load import load_config

    changes = [
        parse_set(text) if option == "--set" else assign_text(FLAGS[option].key, text, option)
        for option, text in arguments.changes
    ]
    return load_config(arguments.config, sets=changes)
