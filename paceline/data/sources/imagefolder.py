"""A folder of images in one sub-folder a class: scans it into an index of files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from paceline.config.schema import DataConfig
from paceline.data.decode import View
from paceline.data.sources.base import Source
from paceline.data.sources.files import (
    ImageFiles,
    Index,
    check_image_size,
    printable,
    view_of,
    whole_images,
)
from paceline.data.sources.held_out import hold_out
from paceline.data.sources.kind import Opened
from paceline.errors import UserError, nearest

EXTENSIONS = (
    b".jpg .jpeg .png .webp .bmp .gif .tif .tiff .ppm .pgm".split()
)  # torchvision's and .gif
EVALUATION_FOLDERS = (b"val", b"valid", b"validation", b"test")


def open_folder(path: str, config: DataConfig) -> Opened:
    """A folder with train/ and val/, or class folders directly, of which a part is held out for evaluation."""
    check_image_size(f"imagefolder:{path}", config)
    root = _root(path)
    train_root = os.path.join(root, b"train")
    if not (os.path.isdir(train_root) and _class_folders(train_root)):
        train_root = root
    index = scan(train_root)
    notes = _notes_on_ignored(index)
    view = view_of(config)
    of_training = None if whole_images(config) else view
    found = [n for n in EVALUATION_FOLDERS if os.path.isdir(os.path.join(root, n))]
    if train_root != root and found:
        other = scan(os.path.join(root, found[0]))
        notes += _notes_on_ignored(other)
        evaluation = _files_of(_with_classes(other, index.classes), view)
        return Opened(train=_files_of(index, of_training), evaluation=evaluation, notes=notes)
    parts = hold_out(index.labels, config.val_fraction, printable(train_root), len(index.classes))
    if parts.num_held_out:
        notes.append(
            f"{printable(root)} has no val/, valid/ or test/ folder: {parts.num_held_out} of its "
            f"{len(index)} images, {config.val_fraction:.3g} of every class and the same each time, "
            "are held out for evaluation"
        )
    return Opened(
        train=_files_of(index, of_training, parts.kept),
        evaluation=_files_of(index, view, parts.out) if parts.num_held_out else None,
        notes=notes + parts.notes,
    )


def open_evaluation_folder(path: str, config: DataConfig, train: Source) -> ImageFiles:
    """All images of a folder, with the classes of the training set."""
    check_image_size(f"imagefolder:{path}", config)
    root = _root(path)
    found = [n for n in EVALUATION_FOLDERS if os.path.isdir(os.path.join(root, n))]
    if found and os.path.isdir(os.path.join(root, b"train")):
        root = os.path.join(root, found[0])
    index = scan(root)
    if isinstance(train, ImageFiles):
        index = _with_classes(index, train.index.classes)
    elif train.class_names:
        index = _with_classes(index, [os.fsencode(name) for name in train.class_names])
    return _files_of(index, view_of(config))


def _files_of(index: Index, view: View | None, rows: np.ndarray | None = None) -> ImageFiles:
    return ImageFiles(index, view, rows, name="imagefolder")


def _with_classes(index: Index, classes: Sequence[bytes]) -> Index:
    """The index with labels that count in `classes`, of which some may have no images."""
    known = {name: label for label, name in enumerate(classes)}
    for name in index.classes:
        if name not in known:
            raise UserError(
                f"the class folder {printable(os.path.join(index.root, name))} is in the evaluation "
                "set and not in the training set",
                nearest(printable(name), [printable(n) for n in classes]),
            )
    new = np.array([known[name] for name in index.classes], dtype=np.int64)
    return replace(index, labels=new[index.labels], classes=tuple(classes))


def _notes_on_ignored(index: Index) -> list[str]:
    if not index.ignored:
        return []
    return [f"{index.ignored} files below {printable(index.root)} are no images and are ignored"]


def _root(path: str) -> bytes:
    if not path:
        raise UserError('data.source = "imagefolder:" names no folder', "write imagefolder:PATH")
    root = os.fsencode(os.path.expanduser(path))
    if not os.path.exists(root):
        raise UserError(f"data.source: {printable(root)} does not exist", _what_exists(root))
    if not os.path.isdir(root):
        raise UserError(
            f"data.source: {printable(root)} is a file",
            "give the folder that holds one sub-folder a class, or train/ and val/",
        )
    return root


def _what_exists(root: bytes) -> str:
    """The hint for a missing path: the nearest name where the path goes wrong."""
    parent, name = os.path.split(os.path.abspath(root))
    while not os.path.isdir(parent):
        parent, name = os.path.split(parent)
    try:
        near = nearest(printable(name), sorted(printable(e.name) for e in os.scandir(parent)))
    except OSError:
        near = "check the path"
    return f"{printable(parent)} exists, and {printable(name)} is not in it; {near}"


def scan(root: bytes) -> Index:
    """Every image below the class folders of `root`, sorted by class and name."""
    classes = _class_folders(root)
    if not classes:
        raise UserError(
            f"{printable(root)} has no class folders",
            "put the images of each class into a folder of their own, named like the class",
        )
    names, lengths, counts, ignored = bytearray(), [np.zeros(1, np.int64)], [], 0
    for name in classes:
        files = list(_files(os.path.join(root, name), name, ()))
        images = sorted(f for f in files if os.path.splitext(f)[1].lower() in EXTENSIONS)
        ignored += len(files) - len(images)
        names += b"".join(images)
        lengths.append(np.fromiter(map(len, images), np.int64, len(images)))
        counts.append(len(images))
    _check_no_empty_class(root, classes, counts)
    return Index(
        root=root,
        names=np.frombuffer(bytes(names), np.uint8),
        offsets=np.cumsum(np.concatenate(lengths)),
        labels=np.repeat(np.arange(len(classes)), counts),
        classes=tuple(classes),
        ignored=ignored,
    )


def _check_no_empty_class(root: bytes, classes: list[bytes], counts: list[int]) -> None:
    empty = [os.path.join(root, c) for c, count in zip(classes, counts, strict=True) if not count]
    if empty:
        more = f", and {len(empty) - 3} more" if len(empty) > 3 else ""
        shown = ", ".join(printable(folder) for folder in empty[:3])
        raise UserError(
            f"no images in the class folder{'s' * (len(empty) > 1)} {shown}{more}",
            f"add images ({b', '.join(EXTENSIONS).decode()}) or remove the folder",
        )


def _class_folders(root: bytes) -> list[bytes]:
    """Names of the sub-folders, without hidden ones."""
    return sorted(e.name for e in _entries(root) if not e.name.startswith(b".") and _is_folder(e))


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    return not _leads_nowhere(entry) and entry.is_dir()


def _files(folder: bytes, name: bytes, above: tuple[tuple[int, int], ...]) -> Iterator[bytes]:
    """Files below a folder, links followed, hidden ones left out. above: identities of the folders around it."""
    status = os.stat(folder)
    identity = (status.st_dev, status.st_ino)
    if identity in above:  # a link that leads back up
        return
    for entry in _entries(folder):
        if entry.name.startswith(b"."):
            continue
        inside = os.path.join(name, entry.name)
        if _leads_nowhere(entry):
            yield inside  # seen as unreadable when it is loaded, instead of missing without a word
        elif entry.is_dir():
            yield from _files(entry.path, inside, (*above, identity))
        elif entry.is_file():
            yield inside


def _leads_nowhere(entry: os.DirEntry[bytes]) -> bool:
    """A link to what is not there, or to itself."""
    return entry.is_symlink() and not os.path.exists(entry.path)


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as e:
        raise UserError(
            f"cannot read the folder {printable(folder)}: {os.strerror(e.errno or 0).lower()}",
            "allow this user to read it (chmod +rx), or choose another folder",
        ) from e
