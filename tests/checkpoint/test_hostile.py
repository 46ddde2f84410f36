"""Checkpoints made to do harm: each is refused in a sentence that names its file."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from paceline.checkpoint import Store, newest_whole, open_checkpoint
from paceline.errors import UserError
from tests.checkpoint.helpers import (
    manifest_of,
    replace_file,
    save_one,
    sign,
    state_of,
    tensors_of,
)

Manifest = dict[str, Any]


@pytest.fixture(autouse=True)
def _modest() -> Iterator[None]:
    """Whatever a checkpoint says, refusing it takes neither long nor much memory."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 400 << 10
    assert time.monotonic() - began < 15


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_one(tmp_path / "checkpoints", 1)


def refused(path: Path, name: str) -> str:
    """The reason for which a checkpoint is refused, however it is opened."""
    for verify in (True, False):
        with pytest.raises(UserError) as caught:
            open_checkpoint(path, verify=verify)
        assert caught.value.what.startswith(f"{path / name} ")
        assert len(caught.value.what) < 1000
    found, passed_over = newest_whole(path.parent)
    assert found is None
    assert len(passed_over) == 1
    return caught.value.what.removeprefix(f"{path / name} ")


def weight(manifest: Manifest) -> Manifest:
    """The entry of model/weight, a tensor of 64 x 8."""
    entry: Manifest = manifest["tensors"]["model/weight"]
    return entry


def piece(manifest: Manifest) -> Manifest:
    first: Manifest = weight(manifest)["pieces"][0]
    return first


def split(manifest: Manifest, *boxes: tuple[list[int], list[int]]) -> None:
    """Says that model/weight lies in these boxes, of keys that do not matter."""
    weight(manifest)["pieces"] = [
        {"file": "rank-0.safetensors", "key": f"k{index}", "offsets": offsets, "sizes": sizes}
        for index, (offsets, sizes) in enumerate(boxes)
    ]


def rename_file(name: str) -> Callable[[Manifest], None]:
    def edit(manifest: Manifest) -> None:
        manifest["files"][name] = manifest["files"].pop("rank-0.safetensors")
        for entry in manifest["tensors"].values():
            for each in entry["pieces"]:
                each["file"] = name

    return edit


def put(where: Callable[[Manifest], Manifest], key: str, value: Any) -> Callable[[Manifest], None]:
    def edit(manifest: Manifest) -> None:
        where(manifest)[key] = value

    return edit


def whole(manifest: Manifest) -> Manifest:
    return manifest


def head(manifest: Manifest) -> Manifest:
    found: Manifest = manifest["head"]
    return found


def state_file(manifest: Manifest) -> Manifest:
    found: Manifest = manifest["files"]["state.json"]
    return found


NAMES = [
    "../../outside.safetensors",
    "/etc/passwd",
    "rank-0.safetensors/../../../outside.safetensors",
    "sub/rank-0.safetensors",
    "rank-0.safetensors\0",
    "rank-0.safetensors\n",
    "rank-٣.safetensors",
    "manifest.json",
    "",
    ".",
]

EDITS: list[tuple[str, Callable[[Manifest], object], str]] = [
    *((f"file name {name!r}", rename_file(name), "which is no name of") for name in NAMES),
    ("shape too large", put(weight, "shape", [2**40, 2**40]), "absurd shape"),
    ("shape beyond 64 bits", put(weight, "shape", [2**64, 8]), "not a whole number"),
    ("empty and absurd", put(weight, "shape", [0, 2**61]), "absurd shape"),
    ("larger than its pieces", put(weight, "shape", [2**30, 8]), "leave a gap in dimension 0"),
    ("too many dimensions", put(weight, "shape", [1] * 10_000), "not a list of sizes"),
    ("negative shape", put(weight, "shape", [-64, 8]), "not a whole number"),
    ("fractional shape", put(weight, "shape", [64.0, 8]), "not a whole number"),
    ("boolean shape", put(weight, "shape", [64, True]), "not a whole number"),
    ("no shape", put(weight, "shape", None), "not a list of sizes"),
    ("unknown dtype", put(weight, "dtype", "F31"), "has the dtype 'F31'"),
    ("dtype that is a list", put(weight, "dtype", ["F32"]), "has the dtype ['F32']"),
    ("negative offset", put(piece, "offsets", [-1, 0]), "not a whole number"),
    ("offset that overflows", put(piece, "offsets", [2**62 + 1, 0]), "not a whole number"),
    ("large offset", put(piece, "offsets", [2**62, 0]), "does not lie inside"),
    ("negative size", put(piece, "sizes", [-64, 8]), "not a whole number"),
    ("no size", put(piece, "sizes", [0, 8]), "does not lie inside"),
    ("size too large", put(piece, "sizes", [65, 8]), "does not lie inside"),
    ("size too small", put(piece, "sizes", [63, 8]), "leave a gap"),
    ("other dimensions", put(piece, "sizes", [64, 8, 1]), "another number of dimensions"),
    ("no pieces", put(weight, "pieces", []), "leave a gap"),
    ("pieces that are text", put(weight, "pieces", "abc"), "has no list of pieces"),
    ("a piece that is a number", put(weight, "pieces", [1]), "is 1, not an object"),
    ("unknown file", put(piece, "file", "rank-1.safetensors"), "is no listed file"),
    ("the state as tensors", put(piece, "file", "state.json"), "is no listed file"),
    ("a file that is a list", put(piece, "file", ["rank-0.safetensors"]), "no file and key"),
    ("a key that is used twice", put(piece, "key", "model/bias"), "is used twice"),
    ("twice the same piece", lambda m: split(m, *[([0, 0], [64, 8])] * 2), "overlap"),
    ("overlap", lambda m: split(m, ([0, 0], [40, 8]), ([24, 0], [40, 8])), "overlap"),
    ("gap", lambda m: split(m, ([0, 0], [30, 8]), ([34, 0], [30, 8])), "leave a gap"),
    (
        "overlap and gap of equal size",
        lambda m: split(
            m, ([0, 0], [32, 4]), ([0, 4], [32, 4]), ([32, 0], [32, 4]), ([0, 0], [32, 4])
        ),
        "overlap or leave a gap",
    ),
    (
        "a missing box",
        lambda m: split(m, ([0, 0], [32, 4]), ([0, 4], [32, 4]), ([32, 0], [32, 4])),
        "overlap or leave a gap",
    ),
    ("many pieces", lambda m: split(m, *[([0, 0], [64, 8])] * 50_000), "overlap"),
    ("an empty tensor with a piece", put(weight, "shape", [0, 8]), "does not lie inside"),
    ("a further field", put(piece, "code", "import os"), "must have exactly the fields"),
    ("a field less", lambda m: weight(m).pop("dtype"), "must have exactly the fields"),
    ("tensors that are a list", put(whole, "tensors", []), "tensors is [], not an object"),
    ("no files", put(whole, "files", {}), "does not list state.json"),
    ("a further part", put(whole, "script", "x"), "must have exactly the fields"),
    ("negative bytes", put(state_file, "bytes", -1), "not a whole number"),
    ("bytes beyond 64 bits", put(state_file, "bytes", 2**70), "not a whole number"),
    ("no digest", put(state_file, "sha256", ""), "has the sha256 ''"),
    ("another digest", put(state_file, "sha256", "A" * 64), "has the sha256 'AAA"),
    ("another format", put(head, "format", "zip"), "its format is 'zip'"),
    ("a later version", put(head, "version", 2), "has the format version 2"),
    ("version zero", put(head, "version", 0), "has the format version 0"),
    ("negative step", put(head, "step", -1), "step is -1, not a whole number"),
    ("step that is text", put(head, "step", "1"), "step is '1', not a whole number"),
    ("best that is a number", put(head, "best", 1), "best is 1, not true or false"),
    ("NaN", put(head, "serial", float("nan")), "the number NaN"),
    ("infinity", put(head, "serial", float("-inf")), "the number -Infinity"),
    ("infinity in tensors", put(weight, "shape", [float("inf"), 8]), "the number Infinity"),
    ("a name of a megabyte", put(lambda m: m["files"], "x" * 2**20, {}), "which is no name of"),
    ("a tensor's name", put(lambda m: m["tensors"], "\ud800" * 99, 1), "is 1, not an object"),
]


@pytest.mark.parametrize(
    ("edit", "reason"), [case[1:] for case in EDITS], ids=[c[0] for c in EDITS]
)
def test_a_hostile_manifest_is_refused(
    saved: Path, edit: Callable[[Manifest], object], reason: str
) -> None:
    (saved.parent.parent / "outside.safetensors").write_bytes(save(tensors_of(1)))
    manifest = manifest_of(saved)
    edit(manifest)
    sign(saved, manifest)
    assert reason in refused(saved, "manifest.json")


JSON_TEXTS = [
    (b"", "it is not JSON"),
    (b"\xff\xfe{}", "it is not JSON"),
    (b"{'a': 1}", "it is not JSON"),
    (b'{"a": 1', "it is not JSON"),
    (b'{"a": 1} {"a": 2}', "it is not JSON"),
    (b"[1]", "it is [1], not an object"),
    (b"null", "it is None, not an object"),
    (b'{"a": NaN}', "the number NaN"),
    (b'{"a": -Infinity}', "the number -Infinity"),
    (b'{"a": 1e999}', "the number '1e999'"),
    (b'{"a": ' + b"9" * 10_000_000 + b"}", "the number '999"),
    (b'{"step": 1, "step": 2}', "a key occurs twice"),
    (b"[" * 1_000_000, "nested too deeply"),
    (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "nested too deeply"),
    (b" " * ((64 << 20) + 1), "it has more than 67,108,864 bytes"),
    (pickle.dumps({"a": 1}), "it is not JSON"),
]


@pytest.mark.parametrize(("text", "reason"), JSON_TEXTS, ids=[c[1] for c in JSON_TEXTS])
def test_a_hostile_state_is_refused(saved: Path, text: bytes, reason: str) -> None:
    replace_file(saved, "state.json", text)
    assert reason in refused(saved, "state.json")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "does not begin with its own sha256"),
        (b"[" * 100_000, "does not begin with its own sha256"),
        (pickle.dumps(os.system), "does not begin with its own sha256"),
        (b"\0" * ((64 << 20) + 1), "it has more than 67,108,864 bytes"),
    ],
    ids=["empty", "deep", "pickle", "large"],
)
def test_a_file_that_is_no_manifest_is_refused(saved: Path, text: bytes, reason: str) -> None:
    (saved / "manifest.json").write_bytes(text)
    assert reason in refused(saved, "manifest.json")


def test_a_manifest_nested_too_deeply_is_refused(saved: Path) -> None:
    manifest = manifest_of(saved)
    manifest["tensors"] = "DEEP"
    sign(saved, manifest)
    text = (saved / "manifest.json").read_bytes().partition(b"\n")[2]
    text = text.replace(b'"DEEP"', b"[" * 200_000 + b"]" * 200_000)
    first = b'{"sha256": "' + hashlib.sha256(text).hexdigest().encode() + b'",\n'
    (saved / "manifest.json").write_bytes(first + text)
    assert "nested too deeply" in refused(saved, "manifest.json")


def header_of(size: int, **tensors: Any) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * size


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


class Harmful:
    """What a pickle could do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harmed",)


TENSOR_FILES = [
    ("empty", b"", "it is no safetensors file"),
    ("a pickle", pickle.dumps(Harmful()), "it is no safetensors file"),
    ("absurd header", b"\xff" * 8 + b"{}", "it is no safetensors file"),
    ("deep header", len(b"[" * 90_000).to_bytes(8, "little") + b"[" * 90_000, "no safetensors"),
    ("absurd shape", header_of(8, a=entry("F32", [2**40, 2**40], 0, 8)), "no safetensors"),
    ("offsets that overflow", header_of(8, a=entry("U8", [8], 2**63, 2**63 + 8)), "no safetensors"),
    ("negative", header_of(8, a=entry("U8", [-8], -8, 0)), "it is no safetensors file"),
    ("beyond the end", header_of(8, a=entry("F32", [3], 0, 12)), "it is no safetensors file"),
    ("unused bytes", header_of(9, a=entry("U8", [8], 0, 8)), "it is no safetensors file"),
    ("other keys", save({"a": torch.zeros(2)}), "has the tensor 'a' that the manifest does not"),
    ("fewer keys", save({"model/bias": torch.arange(8)}), "lacks the tensor 'model/weight'"),
    (
        "another dtype",
        save(tensors_of(1) | {"model/bias": torch.zeros(8)}),
        "tensor 'model/bias' is F32 [8], and the manifest says I64 [8]",
    ),
    (
        "another shape",
        save(tensors_of(1) | {"model/bias": torch.arange(9)}),
        "tensor 'model/bias' is I64 [9], and the manifest says I64 [8]",
    ),
]


@pytest.mark.parametrize(
    ("data", "reason"), [case[1:] for case in TENSOR_FILES], ids=[case[0] for case in TENSOR_FILES]
)
def test_a_hostile_tensor_file_is_refused(
    saved: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, reason: str
) -> None:
    monkeypatch.chdir(saved)
    replace_file(saved, "rank-0.safetensors", data)
    assert reason in refused(saved, "rank-0.safetensors")
    assert not (saved / "harmed").exists()


def test_a_hostile_one_does_not_stop_the_store(saved: Path) -> None:
    manifest = manifest_of(saved)
    manifest["head"]["serial"] = 2**62
    manifest["files"] = {}
    sign(saved, manifest)
    with Store(saved.parent, background=False) as store:
        store.save(2, tensors_of(2), state_of(2))
    (report,) = store.finished()
    assert report.ok
    assert newest_whole(saved.parent)[0] == report.path
