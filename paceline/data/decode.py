"""From the bytes of an image file to a uint8 RGB tensor, and to a square of fixed size. Knows nothing of data sets."""

from __future__ import annotations

import io
import os

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


def resize(image: Tensor, height: int, width: int) -> Tensor:
    """Bilinear with antialiasing, of (C, H, W) or (n, C, H, W), in the image's own dtype."""
    if image.shape[-2:] == (height, width):
        return image
    if image.ndim == 3:
        return resize(image[None], height, width)[0]
    return functional.interpolate(
        image, (height, width), mode="bilinear", antialias=True, align_corners=False
    )


def center_square(image: Tensor, size: int) -> Tensor:
    """The usual view for evaluation: shorter side resized to 8/7 of `size` (256 for 224), then the central square."""
    height, width = image.shape[-2:]
    short = round(size * 8 / 7)
    scale = short / min(height, width)
    image = resize(image, max(size, round(height * scale)), max(size, round(width * scale)))
    top, left = (image.shape[-2] - size) // 2, (image.shape[-1] - size) // 2
    return image[:, top : top + size, left : left + size].contiguous()
