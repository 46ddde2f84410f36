"""How a run ended, as its folder says: result.json, and what an earlier launch left behind.

Rank 0 writes result.json at a good end; for all other ends it is written here.
"""

from __future__ import annotations

import json
import re
from typing import Any

from paceline.records.folder import RunFolder
from paceline.records.reader import Record, latest, read


def forget_earlier_launch(folder: RunFolder) -> None:
    """Removes what would be taken for this launch's: a result, failures and process numbers."""
    folder.result.unlink(missing_ok=True)
    for path in folder.log(0).parent.glob("failure-*.json"):
        path.unlink()
    forget_processes(folder)


def forget_processes(folder: RunFolder) -> None:
    """Removes the process numbers of ranks that were killed."""
    for path in folder.log(0).parent.glob("rank-*.pid"):
        path.unlink()


def read_result(folder: RunFolder) -> dict[str, Any]:
    """What rank 0 wrote at the end; empty where it did not."""
    if not folder.result.exists():
        return {}
    written: dict[str, Any] = json.loads(folder.result.read_text(encoding="utf-8"))
    return written


def write_launcher_result(folder: RunFolder, *, status: str, reason: str) -> None:
    """result.json for a run whose ranks could not write it: as far as rank 0's records go."""
    records = read(folder.records(0)) if folder.records(0).exists() else []
    step = last(records, "step")
    epoch = last(records, "epoch")
    folder.write_result(
        status=status,
        reason=reason,
        step=step.get("step", 0),
        epoch=step.get("epoch", 0),
        metrics=epoch.get("eval_metrics") or {},
        seconds=_seconds(records),
        images_per_s=epoch.get("images_per_s", 0),
        **{name: epoch[name] for name in ("unit", "units_per_sample") if name in epoch},
        weights=None,
        checkpoint=newest_checkpoint(folder),
    )


def last(records: list[Record], kind: str) -> Record:
    """The last record of a kind that counts; empty where there is none."""
    found = list(latest(records, kind))
    return found[-1] if found else {}


def newest_checkpoint(folder: RunFolder) -> str | None:
    """`checkpoints/step-…` of the highest step; a folder of that name is whole."""
    found = folder.checkpoints.glob("step-*")
    names = [path.name for path in found if re.fullmatch(r"step-\d+", path.name)]
    newest = max(names, key=lambda name: int(name.removeprefix("step-")), default=None)
    return f"checkpoints/{newest}" if newest is not None else None


def _seconds(records: list[Record]) -> float:
    """From the first record of the last attempt that began to the last record."""
    starts = [record["time"] for record in records if record["kind"] == "start"]
    return float(records[-1]["time"] - starts[-1]) if starts else 0.0
