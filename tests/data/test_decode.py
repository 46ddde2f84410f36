from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from paceline.data.decode import UnreadableImage, View, decode_image, read_image, resize
from tests.data.conftest import photo, truncate


def encoded(image: Image.Image, format: str, **options: object) -> np.ndarray:
    file = io.BytesIO()
    image.save(file, format, **options)
    return np.frombuffer(file.getvalue(), np.uint8).copy()


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP", "JPEG"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1", "RGBA", "LA", "CMYK", "I;16"])
def test_every_format_and_mode_becomes_rgb(format: str, mode: str) -> None:
    original = photo(1)
    expected = np.asarray(original.convert("L") if mode in ("L", "LA", "I;16") else original)
    image = original.convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray(expected.astype(np.uint16) << 8)
    try:
        data = encoded(image, format)
    except (OSError, KeyError, ValueError):
        return  # the format has no such mode
    decoded = decode_image(data)
    assert decoded.dtype == torch.uint8
    assert decoded.shape == (3, 30, 40)
    if mode in ("RGB", "L", "RGBA", "LA", "I;16") and format not in ("GIF", "WEBP"):
        shown = decoded.permute(1, 2, 0).numpy().astype(int)
        reference = expected[..., None] if expected.ndim == 2 else expected
        assert abs(shown - reference).mean() < 6  # JPEG loses some


def test_a_real_photograph_decodes_as_pillow_does() -> None:
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn is not None and sklearn.submodule_search_locations
    file = Path(sklearn.submodule_search_locations[0]) / "datasets" / "images" / "china.jpg"
    decoded = read_image(str(file).encode())
    reference = np.asarray(Image.open(file).convert("RGB")).transpose(2, 0, 1)
    assert decoded.shape == reference.shape == (3, 427, 640)
    assert abs(decoded.numpy().astype(int) - reference).max() <= 1


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(format: str, orientation: int) -> None:
    image = photo(2)
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = decode_image(encoded(image, format, exif=exif))
    turned = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a),
    }[orientation](np.asarray(image))
    assert abs(decoded.permute(1, 2, 0).numpy().astype(int) - turned).mean() < 6


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "a.webp", "a.tif"])
def test_a_truncated_file_is_unreadable(tmp_path: Path, name: str) -> None:
    photo(3, 200, 150).save(tmp_path / name)
    truncate(tmp_path / name)
    with pytest.raises(UnreadableImage) as caught:
        read_image(bytes(tmp_path / name))
    assert str(caught.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "empty"), (b"no image at all", "not an image"), (b"\xff\xd8\xff\xe0" + b"\0" * 50, "")],
)
def test_what_is_no_image_is_unreadable(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "x.jpg").write_bytes(content)
    with pytest.raises(UnreadableImage, match=why or None):
        read_image(bytes(tmp_path / "x.jpg"))


def test_a_missing_file_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match="no such file"):
        read_image(bytes(tmp_path / "x.jpg"))


def test_resizing_is_close_to_pillow_s() -> None:
    image = photo(4, 120, 90)
    ours = resize(torch.from_numpy(np.array(image)).permute(2, 0, 1), 32, 40)
    pillow = np.asarray(image.resize((40, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert ours.dtype == torch.uint8
    assert abs(ours.numpy().astype(int) - pillow).max() <= 2


@pytest.mark.parametrize(("height", "width"), [(30, 40), (400, 35), (1, 1), (3, 900), (224, 224)])
def test_a_central_square_of_any_image(height: int, width: int) -> None:
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[:, :, : width // 2] = 100
    square = View(24)(image)
    assert square.shape == (3, 24, 24)
    assert square.is_contiguous()
    if width > 1:
        assert (square[0, 12, 0] > 50, square[0, 12, -1] < 50) == (True, True)
