"""Fits weights from elsewhere to a model: names as wrappers left them, a head of another size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from paceline.errors import UserError
from paceline.models.patterns import matches


def fit_weights(
    values: Mapping[str, Tensor], wanted: Mapping[str, Tensor], head: Sequence[str], policy: str
) -> tuple[dict[str, Tensor], list[str]]:
    """A whole state for a model, and what a user should know of it.

    wanted: the model's state as it was initialized. head: names of the modules of its head. policy: `strict`, or
    `replace`: parameters of the head that are missing in `values`, or have another shape, stay as they are in `wanted`.
    Raises UserError that names what does not fit.
    """
    values = {_own_name(name, wanted): value for name, value in values.items()}
    fresh = []
    if policy == "replace":
        in_head = [n for n in wanted if any(matches(part, n) for part in head)]
        fresh = [n for n in in_head if n not in values or values[n].shape != wanted[n].shape]
    counters = [n for n in wanted if n.endswith(".num_batches_tracked") and n not in values]
    fitted = dict(values) | {name: wanted[name] for name in (*fresh, *counters)}
    check_fit(fitted, wanted, "check model.name, its options and the number of classes")
    notes = [f"a new head, not from the weights: {', '.join(fresh)}"] if fresh else []
    return fitted, notes


def check_fit(values: Mapping[str, Tensor], wanted: Mapping[str, Tensor], hint: str) -> None:
    """Raises UserError where a tensor is missing, unknown or of another shape."""
    wrong = [f"{n} is missing" for n in wanted if n not in values]
    wrong += [f"{n} is not in the model" for n in values if n not in wanted]
    for name in wanted.keys() & values.keys():
        have, need = tuple(values[name].shape), tuple(wanted[name].shape)
        if have != need:
            wrong.append(f"{name} has shape {have}, the model {need}")
    if wrong:
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        what = f"the weights do not fit the model: {'; '.join(sorted(wrong)[:4])}{more}"
        raise UserError(what, hint)


def _own_name(name: str, wanted: Mapping[str, Tensor]) -> str:
    """A name without what DataParallel (`module.`) and torch.compile (`_orig_mod.`) put into it."""
    if name in wanted:
        return name
    parts = [part for part in name.split(".") if part != "_orig_mod"]
    while parts[:1] == ["module"] and ".".join(parts) not in wanted:
        parts = parts[1:]
    return ".".join(parts)
