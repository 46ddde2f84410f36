"""Standard output of a command: written out while an error can still become an exit code."""

from __future__ import annotations

import io
import os
import select
import sys

from paceline.errors import UserError

STDOUT = 1  # the file descriptor


def emit(text: str) -> None:
    """Print and flush. A reader that has left is a BrokenPipeError, a full disk a UserError."""
    try:
        if sys.stdout is not None:  # None: started without one, as by `>&-`
            sys.stdout.write(text)
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard()
        what = f"the output cannot be written: {error.strerror}"
        raise UserError(what, "see to the file that the output goes to") from None


def reader_is_gone() -> bool:
    """Whether nobody reads our standard output any more."""
    poll = select.poll()
    poll.register(STDOUT, 0)  # errors are reported unasked
    return bool(poll.poll(0))


def discard() -> None:
    """Send what is still in the buffer nowhere; else Python's own flush at exit fails, aloud."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDOUT)
    os.close(nowhere)


def escape_what_cannot_be_encoded() -> None:
    """Escape what the terminal's encoding lacks, rather than fail in the middle of a line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
