"""The ten settings that have a flag of their own: what `--help` says of them, without the schema.

Help must answer at once, and building the schema costs as much as all the rest of it. So the texts
stand here a second time; a test holds them to the schema.
"""

from __future__ import annotations

from typing import NamedTuple


class Flag(NamedTuple):
    """The setting that a flag stands for, and how help shows it."""

    key: str
    metavar: str
    help: str


FLAGS = {
    "--data": Flag(
        "data.source",
        "NAME",
        "a set such as digits or cifar10, imagefolder:PATH, csv:PATH, tokens:PATH, hf:NAME or module:function",
    ),
    "--model": Flag(
        "model.name", "NAME", "small_resnet, a torchvision classifier's name, or module:function"
    ),
    "--epochs": Flag("train.epochs", "N", "passes over the training set"),
    "--global-batch": Flag(
        "train.global_batch", "N", "samples in one optimizer step, over all ranks"
    ),
    "--lr": Flag("optim.base_lr", "X", "learning rate at a global batch of 256"),
    "--strategy": Flag(
        "parallel.strategy",
        "NAME",
        "single, ddp, dp, or auto: ddp where there are several devices",
    ),
    "--ranks": Flag(
        "parallel.ranks",
        "N",
        "devices to train on; 0: every GPU, or 2 CPU ranks where there is none",
    ),
    "--device": Flag("device", "auto|cpu|cuda", "where to train"),
    "--precision": Flag(
        "precision.dtype",
        "fp32|tf32|bf16|fp16|fp64|auto",
        "bf16, fp16: autocast over fp32 weights; auto: what is fastest where it trains as well",
    ),
    "--max-minutes": Flag(
        "train.max_minutes", "X", "save and leave after this time, to be resumed; 0: no limit"
    ),
}
FLAG_OF = {flag.key: name for name, flag in FLAGS.items()}
