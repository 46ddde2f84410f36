"""A user's own callable as a step: its generators seeded for each image, its result checked."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from paceline.data.augment.base import BadAugment, Context, Step, as_tensor, located
from paceline.data.generators import generators_kept, seed_generators
from paceline.errors import UserError

_RETURN = "return an image of the same kind, channels and dtype"


@dataclass(frozen=True)
class Function(Step):
    """Calls `call` with one image: a tensor (C, H, W), or a Pillow image where its parameter is annotated so.

    What it draws from torch's, numpy's and random's global generators depends on the sample and epoch alone.
    """

    call: Callable[..., Any]
    name: str
    pillow: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    num_draws: ClassVar[int] = 1
    sets_size: ClassVar[bool] = True

    def __call__(self, images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        with generators_kept():
            out = [
                self._checked(row, as_tensor(image), int(number * 2**53))
                for row, (image, number) in enumerate(zip(images, numbers[:, 0], strict=True))
            ]
        for row, image in enumerate(out):
            if image.shape != out[0].shape:
                raise BadAugment(row, f"{self.name} returned {_what(image)}", _RETURN)
        return torch.stack(out).numpy()

    def _checked(self, row: int, image: Tensor, seed: int) -> Tensor:
        seed_generators(seed)
        given = _as_pillow(image) if self.pillow else image.clone()
        try:
            found = self.call(given, **self.options)
        except UserError:
            raise
        except Exception as error:  # what a user's code may raise is open
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
            raise BadAugment(row, f"{self.name} failed: {where}", "correct it") from error
        changed = _as_image(found)
        fits = isinstance(changed, Tensor) and changed.ndim == 3
        if not fits or changed.dtype != image.dtype or len(changed) != len(image):
            wanted = f"{_what(image)} was given"
            raise BadAugment(row, f"{self.name} returned {_what(found)}; {wanted}", _RETURN)
        return changed.detach().contiguous()


def _as_pillow(image: Tensor) -> Any:
    from PIL import Image

    if image.dtype != torch.uint8 or len(image) not in (1, 3):
        raise UserError(
            f"data.augment: a function of Pillow images got {_what(image)}",
            "let it take a tensor: annotate its parameter with torch.Tensor",
        )
    return Image.fromarray(image.permute(1, 2, 0).numpy() if len(image) == 3 else image[0].numpy())


def _as_image(found: Any) -> Any:
    """Pillow's images and arrays as tensors; all else as it is."""
    if hasattr(found, "getbands") and hasattr(found, "convert"):
        pixels = np.array(found)
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
    return as_tensor(found) if isinstance(found, np.ndarray) else found


def _what(found: Any) -> str:
    if isinstance(found, Tensor):
        return f"{str(found.dtype).removeprefix('torch.')} of shape {tuple(found.shape)}"
    return f"a {type(found).__name__}"


def make_function(
    name: str, call: Callable[..., Any], options: Mapping[str, Any], context: Context
) -> Function:
    """The step for a user's callable. options: keyword arguments for it; image: "pillow" or "tensor"."""
    rest = dict(options)
    image = rest.pop("image", None)
    if image not in (None, "pillow", "tensor"):
        raise UserError(f"data.augment: {name} has image = {image!r}", "choose pillow or tensor")
    if not callable(call) or inspect.isclass(call):
        raise UserError(
            f"data.augment: {name} is a {type(call).__name__}, no function of an image",
            "name a function, or an object that can be called, such as a torchvision transform",
        )
    pillow = image == "pillow" if image else _takes_pillow(call)
    return Function(context, call, name, pillow, rest)


@functools.cache
def _takes_pillow(call: Callable[..., Any]) -> bool:
    """Whether the first parameter is annotated as a Pillow image, as a class or as text."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # built in, without a signature
        return False
    kind = parameters[0].annotation if parameters else None
    text = kind if isinstance(kind, str) else f"{getattr(kind, '__module__', '')}.{located(kind)}"  # type: ignore[arg-type]
    return text.startswith("PIL.") or text in ("Image.Image", "PIL.Image.Image")
