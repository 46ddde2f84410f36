"""Made-up images of any size and number of classes, for trials of speed: cheap, endless, and learnable."""

from __future__ import annotations

import numpy as np

from paceline.data.draws import Draws, key, mix
from paceline.data.sources.base import Normalization, VectorSource

_GRID = 4  # a class's picture is a coarse checkerboard of so many random colours a side
_LABEL = 11  # a stream of draws
_PLACES = 1 << 20  # where an image's noise may begin: so many images differ for certain
_STRIDE = 0x9E3B5  # odd, so that neighbours begin far apart and none at the same place
_KEY = 0x5EED  # the images are the same for every seed of a run


class Synthetic(VectorSource):
    """Image i is half its class's picture, half noise; both are functions of i alone. Nothing is stored but noise."""

    name = "synthetic"
    normalization = Normalization(mean=(0.5,), std=(0.25,))

    def __init__(self, num_samples: int, num_classes: int, image_size: int, first: int = 0) -> None:
        """first: the number of the first image, so that evaluation sees others than training."""
        self.num_classes = num_classes
        self._num_samples = num_samples
        self._first = first
        self._size = image_size
        self._cell = -(-image_size // _GRID)
        self._pixels = 3 * (_GRID * self._cell) ** 2
        self._noise = _halved_bytes(self._pixels + _PLACES, key(_KEY, 0))
        colours = _halved_bytes(num_classes * 3 * _GRID * _GRID, key(_KEY, 1))
        self._colours = colours.reshape(num_classes, 3, _GRID, 1, _GRID, 1)

    def __len__(self) -> int:
        return self._num_samples

    def load_many(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        numbers = indices + self._first
        labels = Draws(_KEY, 0, numbers).integers(_LABEL, self.num_classes, 1)[:, 0]
        starts = numbers * _STRIDE % _PLACES
        images = np.empty((len(indices), self._pixels), np.uint8)
        for image, start in zip(images, starts.tolist(), strict=True):
            image[:] = self._noise[start : start + self._pixels]
        images = images.reshape(-1, 3, _GRID, self._cell, _GRID, self._cell)
        images += self._colours[labels]
        side = _GRID * self._cell
        images = images.reshape(-1, 3, side, side)[:, :, : self._size, : self._size]
        return {"input": images, "target": labels}


def _halved_bytes(count: int, start: int) -> np.ndarray:
    """(count,) uint8, random in 0 … 127: the sum of two is a byte again."""
    words = mix(np.arange(count // 8 + 1, dtype=np.uint64) + np.uint64(start))
    return words.view(np.uint8)[:count] >> 1
