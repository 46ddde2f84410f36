"""Images by path, without classes: what `paceline predict` looks at. One that cannot be read is told, not raised."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.data.decode import UnreadableImage, read_image, resize
from paceline.data.sources.base import BadSample, Source
from paceline.data.sources.files import index_of, printable
from paceline.data.sources.imagefolder import EXTENSIONS
from paceline.errors import UserError

_LUMA = (0.299, 0.587, 0.114)  # of ITU-R BT.601, as Pillow and torchvision make grey


class LooseImages(Source):
    """(channels, size, size) uint8 and whether the file could be read; zeros where not.

    view: makes of a whole image (3, H, W) the square that the model sees.
    """

    name = "the images"
    draws_globally = False
    modules = ("torchvision.io",)

    def __init__(
        self, paths: Sequence[bytes], *, view: Callable[[Tensor], Tensor], channels: int, size: int
    ) -> None:
        self._index = index_of([os.fsdecode(path) for path in paths], np.zeros(len(paths)))
        self._view = view
        self._shape = (channels, size, size)

    def __len__(self) -> int:
        return len(self._index)

    def load(self, index: int) -> dict[str, Any]:
        try:
            return {"input": self.read(index), "readable": 1}
        except BadSample:
            return {"input": torch.zeros(self._shape, dtype=torch.uint8), "readable": 0}

    def read(self, index: int) -> Tensor:
        """The image as the model sees it. Raises BadSample."""
        path = self._index.path(index)
        try:
            image = self._view(read_image(path))
        except UnreadableImage as error:
            raise BadSample(index, printable(path), str(error)) from error
        return grey(image) if self._shape[0] == 1 else image


def grey(image: Tensor) -> Tensor:
    """(1, H, W) of (3, H, W) uint8."""
    weights = torch.tensor(_LUMA).view(3, 1, 1)
    return (image.float() * weights).sum(0, keepdim=True).round().to(torch.uint8)


def whole_square(image: Tensor, size: int) -> Tensor:
    """All of the image that a square holds: the shorter side resized to `size`, then the centre. Squares stay whole."""
    height, width = image.shape[-2:]
    scale = size / min(height, width)
    image = resize(image, max(size, round(height * scale)), max(size, round(width * scale)))
    top, left = (image.shape[-2] - size) // 2, (image.shape[-1] - size) // 2
    return image[:, top : top + size, left : left + size].contiguous()


def find_images(given: Sequence[str | os.PathLike[str]]) -> tuple[list[bytes], int]:
    """(paths of files and of the images below folders, how many other files there were), each once.

    A folder's images come in the order of their names; files and folders in the order given.
    """
    found: dict[bytes, None] = {}
    ignored = 0
    for name in given:
        path = os.fsencode(os.path.expanduser(name))
        if os.path.isdir(path):
            for file in _below(path):
                if os.path.splitext(file)[1].lower() in EXTENSIONS:
                    found[file] = None
                else:
                    ignored += 1
        elif os.path.lexists(path):
            found[path] = None
        else:
            raise UserError(
                f"{printable(path)} does not exist", "name a folder of images, or image files"
            )
    if not found:
        names = ", ".join(printable(os.fsencode(os.fspath(name))) for name in given)
        raise UserError(
            f"there are no images in {names}", f"images end in {b', '.join(EXTENSIONS).decode()}"
        )
    return list(found), ignored


def _below(folder: bytes) -> Iterator[bytes]:
    """The files of a folder, hidden ones left out, sorted by path; a linked folder is not entered."""

    def refuse(error: OSError) -> None:
        raise UserError(
            f"cannot read the folder {printable(os.fsencode(error.filename))}: "
            f"{os.strerror(error.errno or 0).lower()}",
            "allow this user to read it (chmod +rx), or name other folders",
        ) from error

    paths = []
    for inside, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(b".")]
        paths += [os.path.join(inside, name) for name in files if not name.startswith(b".")]
    return iter(sorted(paths))
