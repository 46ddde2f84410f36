"""The picture of what a model really sees: samples as stored, then as training augments them, then mixed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from paceline.config.schema import RunConfig
from paceline.data import order
from paceline.data.assemble import Assembler, Task, UnreadableSample
from paceline.data.batch import Batch
from paceline.data.bundle import Data
from paceline.data.inspect.scan import Found, as_array, class_name
from paceline.data.mixing import Mixing, make_mixing
from paceline.data.sources.base import Normalization

_ROWS, _EPOCHS = 8, 6
_TRIES = 40  # steps that are looked at for mixed ones
_GAP, _MARGIN, _LABEL, _MOST_TILE = 8, 28, 168, 152
_PAPER, _INK, _SOFT, _LINE, _ACCENT = "#ffffff", "#1c2128", "#6b7480", "#e4e7eb", "#2f6fdb"


@dataclass(frozen=True)
class _Cell:
    picture: Image.Image
    under: str = ""


@dataclass(frozen=True)
class _Row:
    title: str
    below: str
    cells: Sequence[_Cell]


def draw_sheet(data: Data, config: RunConfig, found: Found) -> Image.Image:
    """Rows of samples from as many classes as fit; columns: as stored, then the first epochs of training."""
    assembler = Assembler(
        train=data.train,
        evaluation=None,
        augment=data.augment,
        seed=config.seed,
        skip_bad=False,
    )
    side = _tile_side(data)
    rows = [_row(data, assembler, found, index, side) for index in _chosen(found)]
    mixing = make_mixing(config.data, config.seed)
    mixed = [] if mixing is None else list(_mixed(data, assembler, mixing, config, side))
    return _paint(rows, mixed, side, _headline(data, config, found))


def _tile_side(data: Data) -> int:
    """Small images are enlarged by whole pixels."""
    size = data.image_size or _MOST_TILE
    return size * (112 // size + 1) if size <= 76 else min(size, _MOST_TILE)


def _chosen(found: Found) -> list[int]:
    """Readable samples, of as many classes as there are rows, the classes evenly spread."""
    readable = found.readable
    if len(readable) == 0:
        return []
    labels = found.labels[readable]
    classes = np.unique(labels)
    if len(classes) > _ROWS:
        classes = classes[np.arange(_ROWS) * len(classes) // _ROWS]
    each = -(-_ROWS // len(classes))
    chosen: list[int] = []
    for label in classes:
        of_class = readable[labels == label]
        take = min(each, len(of_class))
        chosen += [int(found.sampled[of_class[i * len(of_class) // take]]) for i in range(take)]
    return chosen[:_ROWS]


def _row(data: Data, assembler: Assembler, found: Found, index: int, side: int) -> _Row:
    whole = as_array(data.train.load_whole(index)["input"])
    stored = torch.from_numpy(np.array(whole))
    pictures = [_Cell(_tile(_pixels(stored, data.train.normalization), side), "")]
    for epoch in range(_EPOCHS):
        batch = data.prepare(assembler(Task(np.array([index]), epoch)).batch())
        pictures.append(_Cell(_tile(_seen(batch.data["input"][0], data), side)))
    label = found.label_of(index)
    size = f"{whole.shape[-1]} x {whole.shape[-2]}"
    if label < 0:
        return _Row(f"sample {index}", size, pictures)
    return _Row(class_name(data.class_names, label), f"sample {index}, {size}", pictures)


def _mixed(
    data: Data, assembler: Assembler, mixing: Mixing, config: RunConfig, side: int
) -> Iterator[_Row]:
    """The second sample of the first steps, mixed with the first one: what training makes of these."""
    cells: list[_Cell] = []
    starts = range(0, len(data.train) - 1, config.train.global_batch)
    steps = ((epoch, position) for epoch in range(_TRIES) for position in starts)
    for epoch, position in itertools.islice(steps, _TRIES):
        if len(cells) > _EPOCHS:
            break
        indices = order.permutation(config.seed, epoch, len(data.train))
        try:
            loaded = assembler(Task(indices[position : position + 2], epoch))
        except UnreadableSample:  # which the table names
            continue
        batch = mixing(data.prepare(loaded.batch()), epoch=epoch, position=position)
        if "mix" in batch.data:
            picture = _tile(_seen(batch.data["input"][1], data), side)
            cells.append(_Cell(picture, _shares(batch, data)))
    if cells:
        kinds = [name for name in ("mixup", "cutmix") if getattr(mixing, name)]
        yield _Row(" and ".join(kinds), "of the first steps", cells)


def _shares(batch: Batch, data: Data) -> str:
    share = float(batch.data["mix"][1])
    names = [
        class_name(data.class_names, int(batch.data[key][1])) for key in ("target", "target_b")
    ]
    return f"{share:.0%} {names[0]}\n{1 - share:.0%} {names[1]}"


def _seen(image: Tensor, data: Data) -> np.ndarray:
    """What the model is given, with the normalization undone."""
    normalization = data.train.normalization
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (normalization.mean, normalization.std))
    if data.stored_as_bytes:
        image = (image.float() * std + mean) / normalization.scale
        return _as_bytes(image, normalization)
    return _pixels(image, normalization)


def _pixels(image: Tensor, normalization: Normalization) -> np.ndarray:
    """(H, W, 3) uint8 of an image as it is stored; float images are stretched over what they span."""
    if image.dtype == torch.uint8:
        return _as_bytes(image.float(), normalization)
    image = image.float()
    low, high = float(image.min()), float(image.max())
    if low < 0 or high > 1:
        image = (image - low) / max(high - low, 1e-12)
    return _as_bytes(image * 255, Normalization())


def _as_bytes(image: Tensor, normalization: Normalization) -> np.ndarray:
    """scale: what makes stored values 0 … 1; digits have 1/16."""
    values = (image * (normalization.scale * 255)).round().clamp(0, 255).to(torch.uint8)
    if len(values) != 3:
        values = values[:1].expand(3, -1, -1)
    return values.permute(1, 2, 0).contiguous().numpy()


def _tile(pixels: np.ndarray, side: int) -> Image.Image:
    """A square with the whole image in its middle."""
    image = Image.fromarray(pixels)
    factor = side / max(image.size)
    size = tuple(max(1, round(edge * factor)) for edge in image.size)
    how = Image.Resampling.NEAREST if factor >= 1.5 else Image.Resampling.LANCZOS
    tile = Image.new("RGB", (side, side), "#eef0f3")
    fitted = image.resize((size[0], size[1]), how)
    tile.paste(fitted, ((side - size[0]) // 2, (side - size[1]) // 2))
    return tile


def _headline(data: Data, config: RunConfig, found: Found) -> list[str]:
    augment = config.data.augment
    written = augment if isinstance(augment, str) else ", ".join(map(_written, augment))
    if written == "auto":
        written = f"auto ({data.train.augment})"
    size = f"{data.channels} x {data.image_size} x {data.image_size}"
    classes = f", {data.num_classes:,} classes" if data.num_classes else ""
    statistics = found.mean_and_std
    lines = [f"{len(data.train):,} training samples{classes}; a model sees {size}"]
    if statistics is not None:
        mean, std = (", ".join(f"{v:.3f}" for v in values) for values in statistics)
        lines[0] += f"; mean {mean}, std {std}"
    return [config.data.source, *lines, f"augment: {written}"]


def _written(step: Any) -> str:
    if isinstance(step, str):
        return step
    options = ", ".join(f"{key}={value}" for key, value in step.items() if key != "name")
    return f"{step['name']}({options})"


def _font(size: int, bold: bool = False) -> Any:
    """DejaVu where the system has it, since it has most alphabets; else Pillow's own."""
    try:
        return ImageFont.truetype(f"DejaVuSans{'-Bold' * bold}.ttf", size)
    except OSError:
        return ImageFont.load_default(size)


def _paint(rows: list[_Row], mixed: list[_Row], side: int, headline: list[str]) -> Image.Image:
    columns = 1 + _EPOCHS
    title, text, small = _font(22, bold=True), _font(14), _font(12)
    names = _font(14, bold=True)
    width = 2 * _MARGIN + _LABEL + columns * (side + _GAP) + 2 * _GAP
    top = _MARGIN + 38 + 20 * len(headline[1:]) + 40
    below_mixed = 36
    height = top + len(rows) * (side + _GAP) + _MARGIN
    if mixed:
        height += 36 + len(mixed) * (side + _GAP + below_mixed)
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text(
        (_MARGIN, _MARGIN - 6), _fit(draw, headline[0], title, width - 2 * _MARGIN), _INK, title
    )
    for i, line in enumerate(headline[1:]):
        fitted = _fit(draw, line, text, width - 2 * _MARGIN)
        draw.text((_MARGIN, _MARGIN + 32 + 20 * i), fitted, _SOFT, text)

    def left(column: int) -> int:
        """Of a tile; the stored image stands a little apart from the augmented ones."""
        return _MARGIN + _LABEL + column * (side + _GAP) + (2 * _GAP if column else 0)

    for column in range(columns):
        head = "as stored" if column == 0 else f"epoch {column}"
        draw.text((left(column), top - 22), head, _ACCENT if column else _SOFT, small)
    y = top
    for row in rows:
        _paint_row(sheet, draw, row, y, left, side, names, small)
        y += side + _GAP
    if mixed:
        y += 14
        draw.line((_MARGIN, y, width - _MARGIN, y), _LINE, 1)
        y += 16
    for row in mixed:
        _paint_row(sheet, draw, row, y, left, side, names, small)
        y += side + _GAP + below_mixed
    return sheet


def _paint_row(
    sheet: Image.Image, draw: Any, row: _Row, y: int, left: Any, side: int, names: Any, small: Any
) -> None:
    middle = y + side // 2
    draw.text((_MARGIN, middle - 18), _fit(draw, row.title, names, _LABEL - 14), _INK, names)
    draw.text((_MARGIN, middle + 3), _fit(draw, row.below, small, _LABEL - 14), _SOFT, small)
    for column, cell in enumerate(row.cells):
        sheet.paste(cell.picture, (left(column), y))
        for i, line in enumerate(cell.under.split("\n") if cell.under else []):
            draw.text(
                (left(column), y + side + 3 + 15 * i), _fit(draw, line, small, side), _SOFT, small
            )


def _fit(draw: Any, text: str, font: Any, width: int) -> str:
    """The text, cut where it would be wider; control characters are not drawn."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    if draw.textlength(text, font) <= width:
        return text
    while text and draw.textlength(text + "…", font) > width:
        text = text[:-1]
    return text + "…"
