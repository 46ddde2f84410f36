"""Writes lines to a stream that may speak little or be gone, without ending the run over it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO

_PLAIN_SIGNS = str.maketrans({"…": "...", "★": "*", "━": "=", "─": "-", "—": "-"})


def write(stream: IO[str], lines: Iterable[str]) -> bool:
    """Writes each line with its end; False where nobody reads the stream any more."""
    return write_text(stream, "".join(f"{line}\n" for line in lines))


def write_text(stream: IO[str], text: str) -> bool:
    try:
        stream.write(speakable(text, stream))
        stream.flush()
    except BrokenPipeError:
        _silence(stream)
        return False
    except (OSError, ValueError):  # a full disk, a closed stream
        return False
    return True


def _silence(stream: IO[str]) -> None:
    """Points the stream's file at nothing, or the interpreter's last flush fails once more."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)


def speakable(text: str, stream: IO[str]) -> str:
    """The same text in the characters that the stream's encoding has."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN_SIGNS).encode(encoding, "replace").decode(encoding)
    return text
