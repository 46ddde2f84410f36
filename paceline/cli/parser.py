"""argparse with this project's manners: no abbreviations, errors as one sentence with a hint."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from paceline.errors import UserError


class Parser(argparse.ArgumentParser):
    """Raises UserError instead of printing usage and leaving."""

    def __init__(self, **options: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=formatter, **options)

    def parse(self, args: Sequence[str]) -> argparse.Namespace:
        arguments, rest = self.parse_known_args(args)
        if rest:
            raise self._unknown(rest)
        return arguments

    def error(self, message: str) -> NoReturn:
        option, _, problem = message.removeprefix("argument ").partition(": ")
        option = option.split("/")[-1]
        if problem.startswith("expected "):
            hint = f"a value that begins with '-' is written {option}=-1"
            raise UserError(f"{option} needs a value", hint)
        if problem.startswith("ignored explicit argument"):
            raise UserError(f"{option} takes no value", f"write {option} alone")
        choice = re.match(r"invalid choice: (.*) \(choose from (.*)\)", problem)
        if choice:
            choices = choice[2].replace("'", "")
            raise UserError(f"{option} {choice[1]} is not one of its choices", f"choose {choices}")
        raise UserError(message, f"`{self.prog} --help` shows the options")

    def _unknown(self, rest: Sequence[str]) -> UserError:
        from paceline.config import toml  # not needed to answer --help

        option = next((text for text in rest if text.startswith("-")), None)
        if option is not None:
            name = option.partition("=")[0]
            return UserError(f"unknown option {toml.printable(name)}", self._near_option(name))
        what = f"unexpected argument {toml.brief(rest[0])}"
        if "=" in rest[0]:
            return UserError(what, f"did you mean --set {toml.printable(rest[0])}?")
        return UserError(what, f"`{self.prog} --help` shows what it takes")

    def _near_option(self, option: str) -> str:
        """The hint for an option that is none: another one, or the setting that it names."""
        import difflib

        from paceline.config.flags import FLAG_OF
        from paceline.config.keys import near_keys, same_named, settings

        name = option.lstrip("-").replace("-", "_")
        keys = [name] if name in settings() else same_named(name)
        known = [known for known in self._option_string_actions if known.startswith("--")]
        close = difflib.get_close_matches(option, known, n=1, cutoff=0.6)
        if "--set" not in known or (close and not keys):
            return f"did you mean {close[0]}?" if close else f"options: {', '.join(known)}"
        keys = keys or near_keys(name)
        if not keys:
            return f"`{self.prog} --help` shows the options"
        return f"did you mean {' or '.join(FLAG_OF.get(k, f'--set {k}=VALUE') for k in keys)}?"
