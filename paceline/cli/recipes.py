"""List the recipes that ship with Paceline, or print one as TOML."""

from __future__ import annotations

import argparse

from paceline.cli.output import emit
from paceline.cli.parser import Parser

EXAMPLES = """\
examples:
  paceline recipes                              what there is, and what each reaches
  paceline recipes resnet50-a3 > mine.toml      a file to change
  paceline train recipe:resnet50-a3 --data imagefolder:/data/imagenet
  paceline train recipe:cifar10-resnet18 --epochs 30
"""


def fill(parser: Parser) -> None:
    parser.usage = f"{parser.prog} [NAME]"
    parser.epilog = EXAMPLES
    parser.add_argument("name", metavar="NAME", nargs="?", help="print this recipe")


def run(arguments: argparse.Namespace) -> int:
    from paceline.recipes import PREFIX, find_recipe, recipes

    if arguments.name:
        name = arguments.name.removeprefix(PREFIX)
        emit(find_recipe(name).path.read_text(encoding="utf-8"))
        return 0
    for recipe in recipes():
        lines = [f"{key:<9}{recipe.about[key]}" for key in ("model", "data", "reaches", "source")]
        emit(
            "\n".join([recipe.name, f"  {recipe.title}", *(f"    {line}" for line in lines), ""])
            + "\n"
        )
    return 0
