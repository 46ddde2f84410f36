"""What can go wrong, as sentences: what a user can mend, and the exit codes of every command."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of every command; `docs/concepts/exit-codes.md` lists them for users."""

    OK = 0
    INTERNAL = 1  # a defect of Paceline itself, with a traceback
    USER = 2  # something the user can mend; one sentence and a hint
    RANK_FAILED = 3  # a rank crashed or was killed, and restarts did not help
    DIVERGED = 4  # the loss is no longer finite
    RESUME = 75  # stopped as asked, saved: run again with --resume (EX_TEMPFAIL of sysexits.h)
    INTERRUPTED = 130  # a second Ctrl-C: ended at once, without saving


class PacelineError(Exception):
    """An error that ends a command in one sentence and a hint, without a traceback.

    what: what went wrong, with the values, one sentence.
    hint: what to do about it.
    """

    exit_code = ExitCode.INTERNAL

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, hint)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n  hint: {self.hint}" if self.hint else self.what


class UserError(PacelineError):
    """Something that the user can mend: a path, a value, a name."""

    exit_code = ExitCode.USER


class DivergedError(PacelineError):
    """The loss is not finite; going on would only write over good checkpoints."""

    exit_code = ExitCode.DIVERGED


class RankFailedError(PacelineError):
    """A rank crashed or was killed, and no restart was left."""

    exit_code = ExitCode.RANK_FAILED


def nearest(name: str, known: list[str]) -> str:
    """The hint for an unknown name: the nearest known one, or the list."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
    return f"known: {shown}"
