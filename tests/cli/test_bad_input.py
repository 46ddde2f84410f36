"""Bad input through the whole command: one sentence, a hint, the documented exit code, no traceback."""

from __future__ import annotations

import io
import json
import os
import pickle
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from paceline.checkpoint import open_checkpoint
from paceline.cli import main
from paceline.errors import ExitCode


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


SMALL = (
    "--set model.width=8 --set train.max_steps=3 --set train.epochs=1 --set launch.max_restarts=0"
)


def paceline(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """(exit code, stderr) of `paceline ARGUMENTS`."""
    code = main(arguments.split())
    return code, capsys.readouterr().err


def refused(
    arguments: str, capsys: pytest.CaptureFixture[str], *parts: str, code: int = ExitCode.USER
) -> str:
    """Runs, and checks the form of what is said: a sentence with `parts`, a hint, no traceback."""
    found, said = paceline(arguments, capsys)
    assert found == code, said
    lines = said.splitlines()
    errors = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    assert len(errors) == 1, said
    told = "\n".join(lines[errors[0] :])
    assert "\n  hint: " in told
    assert "Traceback" not in said
    for part in parts:
        assert part in told, said
    return told


def photo(path: Path, size: int = 40) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 255, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, "JPEG")
    return path.read_bytes()


def photos(folder: Path, classes: int = 2, each: int = 6) -> None:
    for split in ("train", "val"):
        for name in range(classes):
            for number in range(each):
                photo(folder / split / f"class{name}" / f"{number}.jpg")


FOLDER = (
    "train --data imagefolder:photos --set data.image_size=32 --ranks 1 --global-batch 4"
    " --set data.workers=0 --set optim.base_lr=0.01 " + SMALL
)


def test_a_missing_data_path(capsys: pytest.CaptureFixture[str]) -> None:
    refused(FOLDER, capsys, "photos")


def test_a_class_folder_without_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos(tmp_path / "photos")
    (tmp_path / "photos/train/empty").mkdir()
    refused(FOLDER, capsys, "empty")


def test_no_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos/train").mkdir(parents=True)
    refused(FOLDER, capsys, "photos/train")


def test_a_truncated_jpeg_is_named_or_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos(tmp_path / "photos")
    bad = tmp_path / "photos/train/class1/3.jpg"
    bad.write_bytes(bad.read_bytes()[:300])
    refused(FOLDER, capsys, "class1/3.jpg", "skip")
    code, said = paceline(f"{FOLDER} --set data.on_bad_sample=skip --run skipping", capsys)
    assert code == ExitCode.OK, said
    records = [
        json.loads(line) for line in Path("skipping/records/rank-0.jsonl").read_text().splitlines()
    ]
    steps = [r for r in records if r["kind"] == "step"]
    assert steps[-1]["skipped"] == 1
    assert sum(step["rows"] for step in steps) == 11


def test_labels_out_of_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def data(config):\n"
        "    y = torch.zeros(40, dtype=torch.int64); y[7] = 9\n"
        "    found = torch.utils.data.TensorDataset(torch.zeros(40, 1, 8, 8), y)\n"
        "    found.num_classes = 3\n"
        "    return found\n"
    )
    refused(f"train --data mine:data --ranks 1 {SMALL}", capsys, "sample 7", "label 9", "3 classes")


def test_weights_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"conv.weight": torch.zeros(4, 1, 3, 3)}, tmp_path / "other.safetensors")
    told = f"train --ranks 1 --set model.weights=other.safetensors {SMALL}"
    refused(
        told, capsys, "do not fit", "conv.weight has shape (4, 1, 3, 3)", "norm.bias is missing"
    )


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("train --model resnet19", ["unknown model 'resnet19'", "did you mean 'resnet1"]),
        ("train --data fashon-mnist", ["'fashon-mnist'", "did you mean 'fashion-mnist'?"]),
        ("train --set train.epoch=3", ["train.epoch", "did you mean train.epochs?"]),
        ("train --strategy ddpp", ["unknown strategy 'ddpp'", "did you mean 'ddp'"]),
        ("train --global-batch 100 --ranks 8", ["cannot be split over 8 ranks", "use 96 or 104"]),
        ("train --strategy single --ranks 2", ["'single' uses one device"]),
    ],
)
def test_names_and_numbers(
    arguments: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    refused(f"{arguments} {SMALL} --device cpu", capsys, *parts)
    assert not Path("runs").exists()  # else --resume auto would go on with what cannot run


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    refused("train --device cuda", capsys, "sees no GPU")


def test_an_existing_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/config.toml").write_text("")
    refused("train --run a", capsys, "run folder a exists", "--resume a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/thesis.tex").write_text("")
    refused("train --run b", capsys, "not a run folder")


def test_a_busy_port(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(f"train --set launch.port={port} {SMALL}", capsys, str(port))


def test_a_loss_that_is_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def data(config):\n"
        "    x = torch.zeros(96, 1, 8, 8); x[77] = float('nan')\n"
        "    found = torch.utils.data.TensorDataset(x, torch.zeros(96, dtype=torch.int64))\n"
        "    found.num_classes = 2\n"
        "    return found\n"
    )
    told = refused(
        "train --data mine:data --ranks 2 --epochs 2 --global-batch 8 --set model.width=8"
        " --set checkpoint.every_steps=1 --set launch.max_restarts=0 --device cpu",
        capsys,
        "the loss is nan in step",
        "on rank",
        "learning rate",
        "last good checkpoint is checkpoints/step-",
        code=ExitCode.DIVERGED,
    )
    step = int(told.split("in step ")[1].split()[0])
    good = int(told.split("checkpoints/step-")[1].split()[0].split("\n")[0])
    assert good == step - 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system takes root")
def test_a_full_disk_while_saving_costs_the_checkpoint_and_not_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Room for two checkpoints of 180 kB and the weights, not for a third: the first two stay whole."""
    run = tmp_path / "r"
    run.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=532k", "tmpfs", run], check=True)
    try:
        code, said = paceline(
            f"train --ranks 1 --run r {SMALL} --set train.max_steps=6 --set checkpoint.every_steps=1"
            " --set checkpoint.keep_last=2 --set checkpoint.keep_best=false",
            capsys,
        )
        assert code == ExitCode.OK, said
        assert "No space left on device" in said
        saved = [path for path in (run / "checkpoints").iterdir() if open_checkpoint(path)]
        assert [path.name for path in saved] != []
        assert load_file(run / "model.safetensors")
        result = json.loads((run / "result.json").read_text())
        assert (result["status"], result["step"]) == ("finished", 6)
    finally:
        subprocess.run(["umount", run], check=True)


class Exploit:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def test_a_hostile_checkpoint_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pickles in the place of every file of a checkpoint, and as weights: refused, never loaded."""
    code, said = paceline(f"train --ranks 1 --run good {SMALL}", capsys)
    assert code == ExitCode.OK, said
    payload = io.BytesIO()
    pickle.dump(Exploit(), payload)
    checkpoint = next(Path("good/checkpoints").iterdir())
    for path in checkpoint.iterdir():
        whole = path.read_bytes()
        path.write_bytes(payload.getvalue())
        refused(f"train --resume {checkpoint} --epochs 2 {SMALL}", capsys, path.name)
        path.write_bytes(whole)
    Path("weights.pt").write_bytes(payload.getvalue())
    refused(f"train --ranks 1 --set model.weights=weights.pt {SMALL}", capsys, "weights.pt")
    assert not Path("executed").exists()


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (
        "--set checkpoint.every_steps=2 --set checkpoint.keep_last=3 --set model.width=8 --ranks 1"
    )
    code, said = paceline(f"train --run r --set train.max_steps=6 {options}", capsys)
    assert code == ExitCode.OK, said
    newest = sorted(Path("r/checkpoints").iterdir())[-1]
    tensors = next(newest.glob("*.safetensors"))
    damaged = bytearray(tensors.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    tensors.write_bytes(damaged)
    code, said = paceline("train --resume r --set train.max_steps=8", capsys)
    assert code == ExitCode.OK, said
    assert newest.name in said
    records = [json.loads(line) for line in Path("r/records/rank-0.jsonl").read_text().splitlines()]
    starts = [r for r in records if r["kind"] == "start"]
    assert starts[-1]["resumed_from"] == "checkpoints/step-00000004"


def test_the_final_weights_are_what_torchvision_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torchvision

    code, said = paceline(
        f"train --ranks 1 --model resnet18 --run r {SMALL} --global-batch 8"
        " --data synthetic --set data.num_samples=64",
        capsys,
    )
    assert code == ExitCode.OK, said
    torchvision.models.resnet18(num_classes=10).load_state_dict(load_file("r/model.safetensors"))
