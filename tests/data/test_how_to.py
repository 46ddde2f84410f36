"""The code that the how-to page shows works."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.config.schema import DataConfig
from paceline.data.bundle import bundle, load_data
from paceline.data.loader import Loader
from paceline.data.sources.functions import as_source

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-data-source.md"


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The page's Python blocks, as files of the names that they open with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = []
    for block in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (tmp_path / f"{block[0]}.py").write_text(block[1])
        names.append(block[0])
    yield names
    for name in names:
        sys.modules.pop(name, None)


def test_the_function_of_the_page(blocks: list[str]) -> None:
    data = load_data(DataConfig(source="mydata:make"), 0)
    assert (data.channels, data.image_size, data.num_classes) == (1, 8, 2)
    steps = list(Loader(data.train, seed=0, global_batch=100).epoch(0))
    assert len(steps) == 10


def test_the_source_of_the_page(blocks: list[str]) -> None:
    import mysource  # type: ignore[import-not-found]

    data = bundle(DataConfig(on_bad_sample="skip"), 0, as_source(mysource.Scans(), "data="), None)
    loader = Loader(data.train, seed=0, global_batch=50, augment=data.augment, on_bad_sample="skip")
    assert sum(step.num_skipped for step in loader.epoch(0)) == 1
