"""Carries a user's own objects (model, data, loss) from `paceline.train` to the ranks.

Unpickling runs code. So the file is private to the user and lives as long as the launch, and a rank
reads only the path that its own command line names: nothing in a run folder is ever unpickled.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle

from paceline.errors import UserError

_HINT = (
    "define it in a module that ranks can import, or in the script or notebook itself,"
    " and let it hold no open files, locks or connections"
)


@contextlib.contextmanager
def carried(objects: Any) -> Iterator[Path]:
    """A file with `objects` for the ranks, gone afterwards."""
    try:
        content = cloudpickle.dumps(objects)
    except Exception as error:  # what a user's __reduce__ or __getstate__ may raise is open
        raise UserError(
            f"an object given from Python cannot be sent to the ranks: {error}", _HINT
        ) from error
    handle, name = tempfile.mkstemp(prefix="paceline-objects-")  # mode 0600
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        yield path
    finally:
        path.unlink(missing_ok=True)


def read(path: Path) -> Any:
    """The objects that this user's launcher wrote; refuses a file that others could write."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        others = stat.S_IRWXG | stat.S_IRWXO
        if (
            status.st_uid != os.geteuid()
            or status.st_mode & others
            or not stat.S_ISREG(status.st_mode)
        ):
            raise UserError(
                f"{path} is not a private file of this user, and is not read",
                "let paceline.train() write it",
            )
        try:
            return cloudpickle.load(file)
        except Exception as error:
            raise UserError(
                "an object given from Python cannot be rebuilt in a rank:"
                f" {type(error).__name__}: {error}",
                _HINT,
            ) from error
