"""Which samples are held out for evaluation where a data set has no split of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paceline.data.sources.base import stratified_split
from paceline.errors import UserError


@dataclass(frozen=True)
class Parts:
    """kept, out: ascending sample indices for training and evaluation. notes: for the user."""

    kept: np.ndarray
    out: np.ndarray
    notes: list[str] = field(default_factory=list)

    @property
    def num_held_out(self) -> int:
        return len(self.out)


def hold_out(labels: np.ndarray, fraction: float, name: str, num_classes: int) -> Parts:
    """`data.val_fraction` of every class, the same samples each time; of all samples where there are no classes.

    labels: (n,) classes, or anything with a row a sample where `num_classes` is 0. A class must keep training
    samples; one that is too small to be held out too is only noted.
    """
    if fraction == 0:
        return Parts(np.arange(len(labels)), np.arange(0))
    is_classes = num_classes > 0 and labels.ndim == 1
    groups = labels if is_classes else np.zeros(len(labels), np.int64)
    if len(groups) < 2:
        raise UserError(
            f"{name} holds {len(groups)} sample{'s' * (len(groups) != 1)}, "
            "of which none can be held out for evaluation",
            "add samples, or bring a set for evaluation",
        )
    kept, out = stratified_split(groups, fraction)
    if not is_classes:
        return Parts(kept, out)
    counts, trained, judged = (
        np.bincount(groups[rows], minlength=num_classes) for rows in (slice(None), kept, out)
    )
    bare = np.flatnonzero((counts > 0) & (trained == 0))
    if len(bare):
        more = f" and {len(bare) - 1} more" if len(bare) > 1 else ""
        raise UserError(
            f"data.val_fraction = {fraction:.4g} holds out all {counts[bare[0]]} samples of class "
            f"{bare[0]}{more} of {name}, and leaves none to train on",
            "set a smaller data.val_fraction, or add samples to the class",
        )
    missing = int(np.count_nonzero((counts > 0) & (judged == 0)))
    notes = []
    if missing:
        notes.append(
            f"{missing} classes of {name} have too few samples to be held out for evaluation"
        )
    return Parts(kept, out, notes)
