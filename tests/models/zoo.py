"""Trains many models for two steps each, by ranks that are started once: built, saved, resumed, evaluated."""

from __future__ import annotations

import gc
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from paceline.config.load import load_config
from paceline.loop.setup import Objects, prepare, resolve
from paceline.loop.stopping import StopRequest
from paceline.loop.train import finish, start, train
from paceline.parallel.world import World, join, leave
from paceline.records.folder import RunFolder
from paceline.records.writer import RecordWriter


@dataclass(frozen=True)
class Case:
    """A model with the smallest images that it takes."""

    name: str
    size: int = 32
    options: dict[str, Any] = field(default_factory=dict)


# Left out as large and slow on two cores (alexnet, vgg, vit, maxvit, the wide ones): `python -m tests.models.all`.
TORCHVISION = [
    Case("convnext_tiny"),
    Case("densenet121"),
    Case("efficientnet_b0"),
    Case("efficientnet_b1"),
    Case("efficientnet_v2_s"),
    Case("googlenet"),
    Case("inception_v3", 75, {"aux_logits": False}),
    *(Case(f"mnasnet{width}") for width in ("0_5", "0_75", "1_0", "1_3")),
    *(Case(f"mobilenet_{version}") for version in ("v2", "v3_large", "v3_small")),
    *(Case(f"regnet_{kind}_{size}mf") for kind in "xy" for size in (400, 800)),
    Case("resnet18"),
    Case("resnet34"),
    Case("resnet50"),
    Case("resnext50_32x4d"),
    *(Case(f"shufflenet_v2_x{width}") for width in ("0_5", "1_0", "1_5", "2_0")),
    Case("squeezenet1_0"),
    Case("squeezenet1_1"),
    Case("swin_t"),
    Case("swin_v2_t"),
]
TIMM = [
    Case(f"timm:{name}")
    for name in (
        "cait_xxs24_224",
        "coat_lite_tiny",
        "convnext_atto",
        "deit_tiny_patch16_224",
        "dla46_c",
        "edgenext_xx_small",
        "efficientnet_lite0",
        "efficientvit_b0",
        "efficientvit_m0",
        "ese_vovnet19b_slim_dw",
        "eva02_tiny_patch14_224",
        "fasternet_t0",
        "ghostnet_050",
        "hardcorenas_a",
        "lcnet_035",
        "levit_128s",
        "mambaout_femto",
        "mixer_s32_224",
        "mobilevit_xxs",
        "pit_ti_224",
        "pvt_v2_b0",
        "regnetx_002",
        "resnet10t",
        "rexnet_100",
        "starnet_s1",
        "swiftformer_xs",
        "test_byobnet",
        "test_nfnet",
        "vit_tiny_patch16_224",
        "xcit_nano_12_p16_224",
    )
]


def train_all(folder: Path, cases: list[Case]) -> dict[str, str]:
    """One rank's part; what went wrong, by model, the same on every rank that lives to tell."""
    world = join("cpu", timeout_s=120)
    failed = {}
    for number, case in enumerate(cases):
        path = folder / str(number)
        begun = time.monotonic()
        try:
            _train_and_resume(path, case, world)
        except Exception as error:
            failed[case.name] = f"{type(error).__name__}: {error}"
            if world.num_ranks > 1:
                raise AssertionError(f"{case.name}: {failed[case.name]}") from error
        finally:
            world.barrier()
            if world.rank == 0:
                shutil.rmtree(path, ignore_errors=True)
                print(f"{case.name} {time.monotonic() - begun:.1f} s", flush=True)
            gc.collect()
    leave()
    return failed


def _train_and_resume(path: Path, case: Case, world: World) -> None:
    for step in (1, 2):
        config = load_config(
            flags={
                "device": "cpu",
                "data.source": "synthetic",
                "data.image_size": case.size,
                "data.num_samples": 8,
                "data.num_classes": 3,
                "data.workers": 0,
                "model.name": case.name,
                "model.options": case.options,
                "train.epochs": 1,
                "train.global_batch": 4,
                "train.max_steps": step,
                "optim.base_lr": 0.01,
                "optim.clip_norm": 0.1,  # norms over two samples of one pixel have huge gradients
                "optim.momentum": 0.0,
                "optim.nesterov": False,
                "parallel.strategy": "ddp" if world.num_ranks > 1 else "single",
                "parallel.ranks": world.num_ranks,
                "checkpoint.background": False,
            }
        ).config
        folder = RunFolder(path)
        folder.create()
        with RecordWriter(folder.records(world.rank)) as records:
            prepared = prepare(resolve(config, world.num_ranks), world, Objects())
            this = start(folder, prepared, records, StopRequest())
            assert this.progress.step == step - 1, "it goes on with what was saved"
            assert not train(this)
            finish(this, "", 0.0)
        assert this.progress.step == step
        assert this.evaluation is not None and this.evaluation.count == 1
        values = dict(this.prepared.training.carried.named_parameters())
        assert all(bool(torch.isfinite(v).all()) for v in values.values()), "finite weights"
