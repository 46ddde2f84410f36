"""`inspect_data`: what is in a run's data, as plain values, as a table of text, and as a picture."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config.schema import RunConfig
from paceline.data.bundle import Data, bundle, load_data
from paceline.data.inspect.scan import (
    MOST_LISTED,
    Found,
    Progress,
    class_name,
    in_both,
    look_through,
    name_of,
    sides,
)
from paceline.data.inspect.sheet import draw_sheet
from paceline.data.sources.base import Source
from paceline.data.sources.functions import as_source
from paceline.errors import UserError

_MOST_CLASSES = 20  # shown in the table; data.json has all


def inspect_data(
    config: RunConfig,
    *,
    out: Path | None = None,
    limit: int = 0,
    progress: Progress = lambda done, total: None,
    data: Any = None,
    eval_data: Any = None,
    augment: Any = None,
) -> dict[str, Any]:
    """What is in the data of `config`; with `out`, every sample is read, and data.json and data.png are written there.

    limit: how many samples of each part to read, evenly spread; 0: all. data, eval_data, augment: objects, as
    `paceline.train` takes them.
    """
    found = _open(config, data, eval_data, augment)
    parts = {"train": found.train, "evaluation": found.evaluation}
    page: dict[str, Any] = {
        "source": config.data.source if data is None else found.train.name,
        "augment": _described(config),
        "notes": list(found.notes),
        "input": {"channels": found.channels, "image_size": found.image_size},
        **{name: _counts(source) for name, source in parts.items() if source is not None},
    }
    if out is None:
        return page
    seen = {
        name: look_through(source, config.seed, limit, progress)
        for name, source in parts.items()
        if source is not None
    }
    for name, one in seen.items():
        page[name] |= _details(one)
    if "evaluation" in seen:
        page["in_both"] = _leakage(seen["train"], seen["evaluation"])
    _make_folder(out)
    if found.channels:
        page["picture"] = "data.png"
        draw_sheet(found, config, seen["train"]).save(out / "data.png")
    text = json.dumps(page, indent=2, ensure_ascii=False)
    (out / "data.json").write_text(text + "\n", encoding="utf-8")
    return page


def _open(config: RunConfig, data: Any, eval_data: Any, augment: Any) -> Data:
    settings = dataclasses.replace(config.data, on_bad_sample="skip")  # they are to be listed
    if data is None:
        return load_data(settings, config.seed, augment=augment)
    evaluation = None if eval_data is None else as_source(eval_data, "eval_data=")
    train = as_source(data, "data=")
    return bundle(settings, config.seed, train, evaluation, augment=augment)


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the folder {out} cannot be made: {(error.strerror or str(error)).lower()}",
            "name another with --out",
        ) from error


def _described(config: RunConfig) -> dict[str, Any]:
    names = ("augment", "mixup", "cutmix", "mix_probability", "mix_switch")
    return {name: getattr(config.data, name) for name in names}


def _counts(source: Source) -> dict[str, Any]:
    counts = (
        None if source.labels is None else np.bincount(source.labels, minlength=source.num_classes)
    )
    return {"samples": len(source), "num_classes": source.num_classes} | _by_class(source, counts)


def _by_class(source: Source, counts: np.ndarray | None) -> dict[str, Any]:
    if counts is None or len(counts) == 0:
        return {}
    names = source.class_names
    return {"classes": {class_name(names, i): int(n) for i, n in enumerate(counts)}}


def _details(one: Found) -> dict[str, Any]:
    groups = one.duplicates()
    conflicts = [g for g in groups if len({one.label_of(index) for index in g}) > 1]
    page: dict[str, Any] = {
        "read": len(one.sampled),
        **_by_class(one.source, one.class_counts()),
        "dtypes": dict(one.dtypes),
        "shapes": [[list(s), n] for s, n in one.shapes.most_common(MOST_LISTED)],
        "range": [one.low, one.high] if one.low <= one.high else None,
        "num_unreadable": one.num_unreadable,
        "unreadable": [what for _, what in one.unreadable],
        "num_duplicates": sum(len(group) - 1 for group in groups),
        "duplicates": [[name_of(one.source, i) for i in g] for g in groups[:MOST_LISTED]],
        "num_duplicates_of_other_class": len(conflicts),
        "duplicates_of_other_class": [
            [name_of(one.source, i) for i in g] for g in conflicts[:MOST_LISTED]
        ],
    }
    sizes = sides(one.shapes)
    if sizes:
        page["sizes"] = sizes
    statistics = one.mean_and_std
    if statistics is not None:
        normalization = one.source.normalization
        page["mean"], page["std"] = statistics
        page["normalized_with"] = {"mean": list(normalization.mean), "std": list(normalization.std)}
    return page


def _leakage(train: Found, evaluation: Found) -> dict[str, Any]:
    pairs = in_both(train, evaluation)
    names = [
        [name_of(train.source, a), name_of(evaluation.source, b)] for a, b in pairs[:MOST_LISTED]
    ]
    return {"num": len(pairs), "pairs": names}


def as_table(page: Mapping[str, Any]) -> str:
    """The page for people."""
    size = page["input"]["image_size"]
    channels = page["input"]["channels"]
    seen = f"{channels} x {size} x {size}" if size else "as it is"
    augment = page["augment"]["augment"]
    lines = [f"data     {page['source']}, a model sees {seen}"]
    lines += [f"augment  {augment if isinstance(augment, str) else json.dumps(augment)}"]
    lines += [f"note     {note}" for note in page["notes"]]
    for name in ("train", "evaluation"):
        if name in page:
            lines += ["", *_part(name, page[name])]
    if "in_both" in page and page["in_both"]["num"]:
        both = page["in_both"]
        several = both["num"] > 1
        what = f"{both['num']:,} evaluation sample{'s are' if several else ' is'}"
        lines += ["", f"{what} in the training set, too:"]
        lines += [f"  {a} = {b}" for a, b in both["pairs"][:3]]
    return "\n".join(lines) + "\n"


def _part(name: str, part: Mapping[str, Any]) -> list[str]:
    read = f", {part['read']:,} read" if part.get("read", part["samples"]) < part["samples"] else ""
    lines = [f"{name}: {part['samples']:,} samples{read}"]
    if "sizes" in part:
        sizes = part["sizes"]
        spread = [
            f"{key} {sizes[key][0]} x {sizes[key][1]}" for key in ("smallest", "median", "largest")
        ]
        one = f"all {sizes['median'][0]} x {sizes['median'][1]}"
        lines.append(f"  sizes       {', '.join(spread) if sizes['different'] > 1 else one}")
    elif "shapes" in part:
        shapes = [f"{tuple(shape)} ({n:,})" for shape, n in part["shapes"][:3]]
        low, high = part["range"] or ("?", "?")
        lines.append(
            f"  inputs      {', '.join(part['dtypes'])}, {low:g} … {high:g}, {', '.join(shapes)}"
        )
    for key in ("mean", "std"):
        if key in part:
            used = ", ".join(f"{v:.3g}" for v in part["normalized_with"][key])
            lines.append(
                f"  {key:<11} {', '.join(f'{v:.3f}' for v in part[key])}  (normalized with {used})"
            )
    for key, what in (
        ("unreadable", "unreadable"),
        ("duplicates", "duplicates"),
        ("duplicates_of_other_class", "… of another class"),
    ):
        if f"num_{key}" in part:
            lines.append(f"  {what:<11} {part[f'num_{key}']:,}{_example(part[key])}")
    return lines + _classes(part.get("classes", {}))


def _example(listed: list[Any]) -> str:
    if not listed:
        return ""
    first = listed[0]
    return f", such as {first if isinstance(first, str) else ' = '.join(first[:3])}"


def _classes(counts: Mapping[str, int]) -> list[str]:
    """A line a class with a bar; the largest and the smallest where there are many."""
    if not counts:
        return []
    ordered = sorted(counts, key=lambda name: -counts[name])
    shown = list(counts)
    if len(counts) > _MOST_CLASSES:
        half = _MOST_CLASSES // 2
        shown = [*ordered[:half], "", *ordered[-half:]]
    width = min(max(len(name) for name in shown), 32)
    most = max(counts.values()) or 1
    lines = [f"  {len(counts)} classes:"]
    for name in shown:
        if not name and name not in counts:
            lines.append(f"    … {len(counts) - _MOST_CLASSES} more …")
            continue
        bar = "█" * max(1, round(24 * counts[name] / most)) if counts[name] else ""
        lines.append(f"    {_short(name, width):<{width}} {counts[name]:>9,}  {bar}")
    return lines


def _short(name: str, width: int) -> str:
    name = "".join(c if c.isprintable() else "?" for c in name)
    return name if len(name) <= width else name[: width - 1] + "…"
