"""A folder of images in one sub-folder a class. Scans it into arrays, and decodes one image at a time.

File names are bytes from the disk: never decoded but for display, never handed to a shell.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.data.decode import UnreadableImage, center_square, read_image
from paceline.data.sources.base import IMAGENET, BadSample, Source, stratified_split
from paceline.errors import UserError, nearest

EXTENSIONS = (
    b".jpg .jpeg .png .webp .bmp .gif .tif .tiff .ppm .pgm".split()
)  # torchvision's and .gif
EVALUATION_FOLDERS = (b"val", b"valid", b"validation", b"test")
HELD_OUT = 0.2


@dataclass(frozen=True)
class Index:
    """Which files there are, as arrays: a Python list would be copied into every loader process, bit by bit.

    names: the paths below `root`, end to end, uint8; name i is names[offsets[i]:offsets[i + 1]].
    labels: int64. classes: names of the class folders, sorted. ignored: files that are no images.
    """

    root: bytes
    names: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray
    classes: tuple[bytes, ...]
    ignored: int

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, row: int) -> bytes:
        name = self.names[self.offsets[row] : self.offsets[row + 1]].tobytes()
        return os.path.join(self.root, name)


class ImageFolder(Source):
    """The images of an index, or of some of its rows.

    image_size: of the central square that `load` returns; 0: whole images, which augmentation then crops.
    """

    name = "imagefolder"
    normalization = IMAGENET
    augment = "resized-crop-flip"
    draws_globally = False
    modules = ("torchvision.io",)

    def __init__(self, index: Index, image_size: int, rows: np.ndarray | None = None) -> None:
        self.index = index
        self._image_size = image_size
        self._rows = np.arange(len(index)) if rows is None else rows
        self.labels: np.ndarray = index.labels[self._rows]
        self.num_classes = len(index.classes)
        self.class_names = tuple(printable(name) for name in index.classes)

    def __len__(self) -> int:
        return len(self._rows)

    def path(self, index: int) -> bytes:
        return self.index.path(int(self._rows[index]))

    def load(self, index: int) -> dict[str, Any]:
        path = self.path(index)
        try:
            image = read_image(path)
        except UnreadableImage as e:
            raise BadSample(index, printable(path), str(e)) from e
        if self._image_size:
            image = center_square(image, self._image_size)
        return {"input": image, "target": int(self.labels[index])}

    def digest(self) -> str:
        parts = (self.index.names, self.index.offsets, self._rows)
        digest = hashlib.blake2b(super().digest().encode(), digest_size=8)
        for part in parts:
            digest.update(part.tobytes())
        return digest.hexdigest()


def printable(name: bytes) -> str:
    """A file name for people: control characters and bytes that are no UTF-8 are written as escapes."""
    text = name.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def open_folder(
    path: str, image_size: int, whole: bool
) -> tuple[ImageFolder, ImageFolder, list[str]]:
    """(train, evaluation, notes) of a folder with train/ and val/, or of class folders directly.

    whole: training images are not cropped yet, since augmentation will.
    """
    root = _root(path)
    train_root = os.path.join(root, b"train")
    if not (os.path.isdir(train_root) and _class_folders(train_root)):
        train_root = root
    index = scan(train_root)
    notes = _notes_on_ignored(index)
    size = 0 if whole else image_size
    found = [n for n in EVALUATION_FOLDERS if os.path.isdir(os.path.join(root, n))]
    if train_root != root and found:
        other = scan(os.path.join(root, found[0]))
        notes += _notes_on_ignored(other)
        evaluation = ImageFolder(_with_classes(other, index.classes), image_size)
        return ImageFolder(index, size), evaluation, notes
    kept, held_out = stratified_split(index.labels, HELD_OUT)
    if len(kept) == 0 or len(held_out) == 0:
        raise UserError(
            f"{printable(train_root)} holds one image, of which none can be held out for evaluation",
            "add images, or put them into train/ and val/ folders",
        )
    notes.append(
        f"{printable(root)} has no val/, valid/ or test/ folder: {len(held_out)} of its "
        f"{len(index)} images, the same fifth of every class each time, are held out for evaluation"
    )
    return ImageFolder(index, size, kept), ImageFolder(index, image_size, held_out), notes


def open_evaluation_folder(path: str, image_size: int, train: Source) -> ImageFolder:
    """All images of a folder, with the classes of the training set."""
    root = _root(path)
    found = [n for n in EVALUATION_FOLDERS if os.path.isdir(os.path.join(root, n))]
    if found and os.path.isdir(os.path.join(root, b"train")):
        root = os.path.join(root, found[0])
    index = scan(root)
    if isinstance(train, ImageFolder):
        index = _with_classes(index, train.index.classes)
    elif train.class_names:
        index = _with_classes(index, [os.fsencode(name) for name in train.class_names])
    return ImageFolder(index, image_size)


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
