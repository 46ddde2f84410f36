"""Reads a configuration file into a table, or says in one sentence why not; executes nothing."""

from __future__ import annotations

import difflib
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config import toml
from paceline.errors import UserError

MAX_BYTES = 64 * 1024  # twenty times a file that names every setting
MAX_DOTS = 1000  # in a line: the parser takes quadratic time over a key of many parts


@dataclass(frozen=True)
class Source:
    """A parsed file: its table, and the lines on which its keys stand."""

    name: str
    table: dict[str, Any]
    lines: dict[str, int]

    def place(self, key: str) -> str:
        """`experiment.toml line 4`: where a key stands, or the nearest table around it."""
        while key:
            if key in self.lines:
                return f"{self.name} line {self.lines[key]}"
            key = key.rpartition(".")[0]
        return self.name


def read_source(path: Path) -> Source:
    text = _read_text(path)
    _refuse_endless_keys(path, text)
    try:
        table = toml.parse(text)
    except toml.ParseError as error:
        raise _syntax_error(path, text, str(error)) from None
    except RecursionError:
        what = f"{_shown(path)} is nested too deeply to be a configuration"
        raise UserError(what, "settings need no more than a few levels of brackets") from None
    except ValueError as error:  # an integer of thousands of digits, an impossible date
        what = f"{_shown(path)} holds an impossible value: {toml.printable(str(error))}"
        raise UserError(what, "settings are strings, numbers, true, false, lists, tables") from None
    return Source(_shown(path), table, toml.line_numbers(text))


def _shown(path: Path) -> str:
    return toml.printable(str(path), 200)


def _read_text(path: Path) -> str:
    content = _read_bytes(path)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{_shown(path)} is UTF-16 text", "save it as UTF-8")
    if b"\0" in content:
        raise UserError(f"{_shown(path)} is not a text file", "give a TOML file with settings")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"{_shown(path)} line {line} is not UTF-8 text (byte {content[error.start]:#04x})"
        raise UserError(what, "save the file as UTF-8") from None


def _read_bytes(path: Path) -> bytes:
    try:
        _refuse_no_file(path, path.stat().st_mode)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"there is no file {_shown(path)}", _missing_hint(path)) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        what = f"{_shown(path)} cannot be read: {reason}"
        raise UserError(what, "give a readable TOML file") from None
    if len(content) > MAX_BYTES:
        what = f"{_shown(path)} is larger than {MAX_BYTES // 1024} KiB, so it is no configuration"
        raise UserError(what, "give a TOML file with settings")
    return content


def _refuse_no_file(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        inside = path / "config.toml"
        hint = f"did you mean {_shown(inside)}?" if inside.is_file() else "give a TOML file"
        raise UserError(f"{_shown(path)} is a folder, not a configuration file", hint)
    if not stat.S_ISREG(mode):
        raise UserError(f"{_shown(path)} is not a regular file", "save the settings in a file")


def _missing_hint(path: Path) -> str:
    if "=" in path.name:
        return f"did you mean --set {_shown(path)}?"
    try:
        present = [p.name for p in path.parent.iterdir() if p.suffix == ".toml"]
    except OSError:
        return f"there is no readable folder {_shown(path.parent)} either"
    near = difflib.get_close_matches(path.name, present, n=1, cutoff=0.6)
    if near:
        return f"did you mean {_shown(path.parent / near[0])}?"
    return "give the path of a TOML file, or leave it out to use the defaults"


def _refuse_endless_keys(path: Path, text: str) -> None:
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > MAX_DOTS:
            what = f"{_shown(path)} line {number} has {line.count('.')} dots"
            raise UserError(what, "no setting needs a key or a value like that")


def _syntax_error(path: Path, text: str, message: str) -> UserError:
    """One sentence with the line; the hint goes by what that line looks like."""
    reason = re.sub(r" \(at .*\)$", "", message)
    found = re.search(r"at line (\d+)", message)
    lines = text.split("\n")
    number = int(found[1]) if found else len(lines)
    line = lines[number - 1].strip()
    shown = toml.printable(line) or "the file ends too early"
    what = f"{_shown(path)} line {number} is not valid TOML: {shown}"
    return UserError(what, _syntax_hint(path, line, reason))


def _syntax_hint(path: Path, line: str, reason: str) -> str:
    if path.suffix in (".yaml", ".yml", ".json", ".py"):
        return f"Paceline reads TOML (key = value lines under [section] lines), not {path.suffix}"
    if "overwrite" in reason or "twice" in reason or "mutate" in reason:
        return "this key or section was given before; keep one of the two"
    key, equals, value = (part.strip() for part in line.partition("="))
    if not equals:
        return "write key = value, or [section] on a line of its own"
    if not value:
        return f"write a value after {toml.brief(key, 30)}"
    if value.lower() in ("true", "false"):
        return f"write {value.lower()} in lower case"
    if value.lower() in ("none", "null", "~"):
        return "TOML has no empty value; leave the line out to use the default"
    if re.fullmatch(r"[-+]?(\.\d+|\d+\.)([eE].*)?", value):
        return "write digits on both sides of the point, such as 0.1"
    if re.fullmatch(r"[A-Za-z_./~][^\"'#]*", value):
        return f'put text in quotes: {key} = "{value}"'
    return f"{reason[:1].lower()}{reason[1:]}"


def parse_value(text: str) -> Any:
    """One TOML value on its own; raises ValueError where the text is not exactly that."""
    try:
        table = toml.parse(f"value = {text}")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if list(table) != ["value"]:
        raise ValueError("more than one value")
    return table["value"]
