"""From the bytes of an image file to a uint8 RGB tensor, and to a square of fixed size. Knows nothing of data sets."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


class UnreadableImage(Exception):
    """The bytes are no image that can be decoded; the text says why."""


def read_image(path: bytes) -> Tensor:
    """(3, H, W) uint8 of an image file, turned as its EXIF orientation says."""
    try:
        with open(path, "rb") as file:
            data = np.fromfile(file, np.uint8)
    except OSError as e:
        raise UnreadableImage(os.strerror(e.errno).lower() if e.errno else str(e)) from e
    return decode_image(data)


def decode_image(data: np.ndarray) -> Tensor:
    """(3, H, W) uint8 of a file's bytes. torchvision decodes what it knows, Pillow the rest."""
    if data.size == 0:
        raise UnreadableImage("the file is empty")
    try:
        from torchvision import io as images

        image = images.decode_image(
            torch.from_numpy(data), mode=images.ImageReadMode.RGB, apply_exif_orientation=True
        )
    except (
        RuntimeError,
        AttributeError,
    ):  # AttributeError: torchvision built without its image library
        return _decode_with_pillow(data)
    if image.dtype != torch.uint8:  # 16-bit PNG
        image = (image.to(torch.int32) >> 8).to(torch.uint8)
    return image[0] if image.ndim == 4 else image  # the first picture of an animation


def _decode_with_pillow(data: np.ndarray) -> Tensor:
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data.tobytes())) as image:
            turned = ImageOps.exif_transpose(image)
            if turned.mode.startswith("I"):  # 16 or 32 bits a pixel, of which 16 are used
                grey = (np.asarray(turned).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
                pixels = np.repeat(grey[:, :, None], 3, axis=2)
            else:
                pixels = np.array(turned.convert("RGB"))
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as e:
        raise UnreadableImage(_plain(e)) from e
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _plain(error: Exception) -> str:
    text = str(error)
    if "cannot identify image file" in text:
        return "not an image that Pillow can read"
    return text or type(error).__name__


def resize(image: Tensor, height: int, width: int, interpolation: str = "bilinear") -> Tensor:
    """(C, H, W) or (n, C, H, W) to another size, in the image's own dtype; all but nearest with antialiasing.

    interpolation: nearest, bilinear or bicubic.
    """
    if image.shape[-2:] == (height, width):
        return image
    if image.ndim == 3:
        return resize(image[None], height, width, interpolation)[0]
    if interpolation == "nearest":
        return functional.interpolate(image, (height, width), mode="nearest")
    return functional.interpolate(
        image, (height, width), mode=interpolation, antialias=True, align_corners=False
    )


def resize_shorter(image: Tensor, shorter: int, interpolation: str = "bilinear") -> Tensor:
    """The shorter side to `shorter` pixels, the longer in proportion, rounded down as torchvision's Resize does."""
    height, width = image.shape[-2:]
    if height <= width:
        return resize(image, shorter, int(shorter * width / height), interpolation)
    return resize(image, int(shorter * height / width), shorter, interpolation)


@dataclass(frozen=True)
class View:
    """How a whole image becomes the square that a model is evaluated on: resized, then cropped in its middle.

    size: of the square, pixels. shorter: the shorter side before the crop, pixels; 0: 8/7 of `size` (256 for 224).
    """

    size: int
    shorter: int = 0
    interpolation: str = "bilinear"

    def __call__(self, image: Tensor) -> Tensor:
        """As torchvision's Resize(shorter) and CenterCrop(size)."""
        shorter = self.shorter or round(self.size * 8 / 7)
        image = resize_shorter(image, shorter, self.interpolation)
        top, left = (round((side - self.size) / 2) for side in image.shape[-2:])
        return image[:, top : top + self.size, left : left + self.size].contiguous()
