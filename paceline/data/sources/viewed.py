"""What sources of images of any size share: evaluation sees a square of each, augmentation may want the whole."""

from __future__ import annotations

from typing import Any

from paceline.data.decode import View
from paceline.data.sources.base import IMAGENET, Source


class ViewedSource(Source):
    """Images of any size, which subclasses load whole.

    view: the square that `load` returns; None: whole images, which augmentation then crops.
    """

    normalization = IMAGENET
    augment = "resized-crop-flip"
    draws_globally = False
    whole_images = True

    def __init__(self, view: View | None) -> None:
        self._view = view

    def load(self, index: int) -> dict[str, Any]:
        sample: dict[str, Any] = self.load_whole(index)
        if self._view is not None:
            sample["input"] = self._view(sample["input"])
        return sample
