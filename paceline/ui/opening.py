"""The first lines of a run on the screen: what trains on what, and how the batch is split."""

from __future__ import annotations

from paceline.records.reader import Record
from paceline.ui import text


def opening(start: Record) -> list[tuple[str, str]]:
    """Label and text of each line, from the start record."""
    lines = [
        ("model", f"{_safe(start['model'])}, {text.count(start['parameters'])} parameters"),
        ("data", _data(start)),
        ("ranks", _ranks(start)),
        ("batch", _batch(start)),
    ]
    if start.get("peak_lr") is not None:
        lines.append(("lr", f"{text.learning_rate(start['peak_lr'])} at its peak"))
    return lines + [("note", _safe(note)) for note in start.get("notes") or []]


def resumed(start: Record) -> str:
    """resumed from step 120 (checkpoints/step-00000120)."""
    if not start.get("resumed_from"):
        return "started again from the beginning"
    return f"resumed from step {start['step']} ({_safe(start['resumed_from'])})"


def _data(start: Record) -> str:
    source = f"{_safe(start['data'])}, " if start.get("data") else ""
    evaluation = text.count(start["eval_samples"]) if start.get("eval_samples") else "none"
    return f"{source}{text.count(start['train_samples'])} samples, {evaluation} for evaluation"


def _ranks(start: Record) -> str:
    num_ranks, device = start["num_ranks"], _safe(start["device"])
    num_devices = start.get("num_devices") or num_ranks
    if num_ranks > 1:
        processes = f"{num_ranks} x {device.partition(':')[0]}"
    elif num_devices > 1:
        processes = f"1 process for {num_devices} x {device.partition(':')[0]}"
    else:
        processes = f"1, on {device}"
    return f"{processes}, {_safe(start['strategy'])}, {_safe(start['precision'])}"


def _batch(start: Record) -> str:
    """How the global batch is split over ranks and micro-batches."""
    whole, ranks = start["global_batch"], start["num_ranks"]
    share, more = divmod(whole, ranks)
    if more:
        return f"{whole} = {more} x {share + 1} + {ranks - more} x {share} over {ranks} ranks"
    factors = [f"{ranks} ranks"] if ranks > 1 else []
    if start.get("accumulation", 1) > 1:
        factors += [f"{start['accumulation']} micro-batches", str(start["micro_batch"])]
    elif ranks > 1:
        factors.append(str(share))
    return f"{whole} = {' x '.join(factors)}" if factors else f"{whole}, in one pass"


def _safe(value: object) -> str:
    return text.harmless(str(value), 300)
