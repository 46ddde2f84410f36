"""The settings of a run: one frozen dataclass a section, each field with a default that works.

Fields are checked alone when their section is built (`config/section.py`), and together in
`RunConfig`. Reading files, flags and `--set` is `config/load.py`'s business; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.config.section import Section, SettingError, refused, setting
from paceline.config.values import Steps
from paceline.errors import UserError

SINKS = ("tensorboard", "mlflow", "wandb", "csv")


@dataclass(frozen=True, kw_only=True)
class DataConfig(Section):
    source: str = setting(
        "digits",
        "a set such as digits or cifar10, imagefolder:PATH, csv:PATH, tokens:PATH, hf:NAME or module:function",
    )
    eval_source: str = setting(
        "", "where evaluation samples come from; empty: the source's own split"
    )
    folder: str = setting(
        "data", "where data sets by name lie, and are downloaded to, in torchvision's layout"
    )
    val_fraction: float = setting(
        0.2,
        "of every class, held out where a source has no evaluation split; 0: no evaluation",
        at_least=0,
        below=1,
    )
    columns: Mapping[str, Any] = setting(
        {}, "of csv and hf: which columns hold path, label (or a list of them), split and weight"
    )
    label_kind: Literal["auto", "classes", "labels", "numbers"] = setting(
        "auto", "of csv: a class a sample, several labels a sample, or numbers to predict"
    )
    sequence_length: int = setting(256, "of tokens: how many a sample has", at_least=1)
    sampling: Literal["shuffle", "balanced", "weighted"] = setting(
        "shuffle",
        "shuffle: each sample once an epoch; else draws with replacement: every class equally often, "
        "or by weight",
    )
    sample_weights: str = setting(
        "",
        "of weighted sampling: a .npy or text file, a number a training sample; empty: the source's",
    )
    epoch_samples: int = setting(
        0, "samples of an epoch; 0: as many as the training set has", at_least=0
    )
    image_size: int = setting(
        0, "side of the square the model sees, pixels; 0: the source's own", at_least=0
    )
    eval_resize: int = setting(
        0,
        "shorter side of whole images before the central crop of evaluation, pixels; "
        "0: 8/7 of image_size (256 for 224)",
        at_least=0,
    )
    interpolation: Literal["bilinear", "bicubic", "nearest"] = setting(
        "bilinear", "of resizing whole images, in training and in evaluation"
    )
    augment: Steps = setting(
        "auto",
        "per-sample augmentation of training images: none, crop-flip, resized-crop-flip, steps such as "
        "rand-augment(magnitude=9), or module:function; auto: what suits the source",
    )
    mixup: float = setting(
        0.0, "mixes pairs of samples: alpha of the Beta distribution; 0: off", at_least=0
    )
    cutmix: float = setting(
        0.0, "cuts windows out of one sample into another: its alpha; 0: off", at_least=0
    )
    mix_probability: float = setting(1.0, "that a micro-batch is mixed", at_least=0)
    mix_switch: float = setting(
        0.5, "that a mixed micro-batch is mixed by cutmix, where both are on", at_least=0
    )
    workers: int = setting(
        -1, "loader processes a rank; -1: as many as help, 0: load in the rank", at_least=-1
    )
    prefetch: int = setting(2, "batches that each worker prepares ahead", at_least=1)
    on_bad_sample: Literal["error", "skip"] = setting(
        "error", "an unreadable sample ends the run, or has weight 0 and is counted"
    )
    num_samples: int = setting(4096, "samples of the synthetic source", at_least=1)
    num_classes: int = setting(10, "classes of the synthetic source", at_least=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mix_probability", "mix_switch"):
            value = getattr(self, name)
            if value > 1:
                raise refused(f"data.{name}", value, "is too large", "give a value up to 1")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Section):
    name: str = setting(
        "small_resnet", "small_resnet, a torchvision classifier's name, or module:function"
    )
    norm: Literal["group", "batch"] = setting("group", "normalization layers of small_resnet")
    width: int = setting(32, "channels of small_resnet's first stage", at_least=8)
    dropout: float = setting(0.0, "dropout before small_resnet's classifier", at_least=0, below=1)
    pretrained: bool | str = setting(
        False, "true, or the tag of pretrained weights that the model's library can fetch"
    )
    weights: str = setting(
        "", "initial weights: a .safetensors or .pth file, or a run folder of Paceline's"
    )
    head: Literal["replace", "strict"] = setting(
        "replace", "where weights have another head: begin with a new one, or refuse them"
    )
    channels_last: Literal["auto"] | bool = setting(
        "auto", "images with their channels last in memory; auto: for models with 2-D convolutions"
    )
    recompute: Literal["none", "blocks"] | tuple[str, ...] = setting(
        "none", "activations that backward computes again: of every block, or of named modules"
    )
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = setting(
        "none", "torch.compile of each block, in place, in this mode"
    )
    options: Mapping[str, Any] = setting({}, "further keyword arguments for the model's builder")


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Section):
    """Patterns are shell-like (`*`, `?`, `[ab]`) and match a parameter's full name or a part of the model it is in."""

    freeze: tuple[str, ...] = setting((), "patterns of parameters that are not trained")
    probe: bool = setting(False, "a linear probe: nothing is trained but the head")
    unfreeze: Mapping[str, Any] = setting(
        {}, "pattern = N: what is frozen is trained after N epochs"
    )
    frozen_batchnorm: bool = setting(
        False, "BatchNorm always normalizes with its running statistics, and never moves them"
    )
    lr_factors: Mapping[str, Any] = setting(
        {}, "pattern = F: a learning rate of F times the schedule's; the last that matches counts"
    )
    layer_decay: float = setting(
        1.0,
        "factor of the learning rate for each block further from the head; 1: none",
        at_least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for pattern, epoch in self.unfreeze.items():
            if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 1:
                raise refused(
                    f"finetune.unfreeze.{pattern}",
                    epoch,
                    "is no number of epochs",
                    'write, for example, unfreeze = { "layer4" = 2 }',
                )
        for pattern, factor in self.lr_factors.items():
            if not isinstance(factor, (int, float)) or isinstance(factor, bool) or factor < 0:
                raise refused(
                    f"finetune.lr_factors.{pattern}",
                    factor,
                    "is no factor",
                    'write, for example, lr_factors = { "head" = 10.0 }',
                )
        if self.layer_decay > 1:
            raise refused(
                "finetune.layer_decay", self.layer_decay, "is too large", "give 1 or less"
            )


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Section):
    epochs: int = setting(20, "passes over the training set", at_least=1)
    global_batch: int = setting(64, "samples in one optimizer step, over all ranks", at_least=1)
    eval_batch: int = setting(
        0, "samples a rank in one evaluation batch; 0: as many as in training", at_least=0
    )
    eval_every: int = setting(
        1, "epochs between evaluations; the last epoch is always evaluated", at_least=1
    )
    loss: Literal["auto", "cross-entropy", "bce", "mse", "l1", "huber"] = setting(
        "auto", "auto: by the targets; classes cross-entropy, a vector of labels bce, numbers mse"
    )
    class_weights: Literal["none", "balanced"] | tuple[float, ...] = setting(
        "none", "of each class's losses; balanced: a class counts the same, whatever its samples"
    )
    label_smoothing: float = setting(0.0, "of cross-entropy and bce", at_least=0, below=1)
    max_steps: int = setting(0, "end after this many optimizer steps; 0: no limit", at_least=0)
    max_minutes: float = setting(
        0.0, "save and leave after this time, to be resumed; 0: no limit", at_least=0
    )
    metrics: tuple[str, ...] = setting(
        (),
        "what evaluations measure besides the loss, such as top5, f1, auc, ece; none: what suits the task",
    )
    patience: int = setting(
        0, "end after this many evaluations without a better metric; 0: never", at_least=0
    )
    target: float = setting(
        0.0, "end after the evaluation in which the metric is this good; 0: never", at_least=0
    )
    metric: str = setting(
        "",
        "what `best`, `patience` and `target` look at; empty: accuracy where there is one, else loss",
    )
    goal: Literal["auto", "max", "min"] = setting(
        "auto", "which way that metric is better; auto: min for names with loss or error in them"
    )


@dataclass(frozen=True, kw_only=True)
class OptimConfig(Section):
    name: Literal[
        "sgd", "adamw", "adam", "lars", "lamb", "muon", "schedulefree-sgd", "schedulefree-adamw"
    ] = setting("sgd", "optimizer; lars, lamb, muon and schedulefree need the extra `optim`")
    base_lr: float = setting(0.4, "learning rate at a global batch of 256", at_least=0)
    lr_scaling: Literal["linear", "none"] = setting(
        "linear", "linear: base_lr x global_batch / 256 (Goyal et al. 2017); none: base_lr as it is"
    )
    momentum: float = setting(0.9, "of SGD, LARS and Muon", at_least=0, below=1)
    nesterov: bool = setting(True, "Nesterov momentum of SGD, LARS and Muon")
    betas: tuple[float, float] = setting(
        (0.9, 0.999), "of Adam, AdamW, LAMB and Muon's AdamW", at_least=0, below=1
    )
    eps: float = setting(1e-8, "of the same", at_least=0)
    weight_decay: float = setting(
        5e-4, "L2 penalty of SGD, LARS and Adam, decoupled decay of the others", at_least=0
    )
    clip_norm: float = setting(0.0, "largest gradient norm; 0: no clipping", at_least=0)
    ema_decay: float = setting(
        0.0, "decay of the averaged weights; 0: no averaging", at_least=0, below=1
    )
    decay_norms: bool = setting(
        True, "weight decay also on normalization layers, biases and other vectors"
    )
    schedule: Literal["cosine", "step", "constant"] = setting("cosine", "after the warm-up")
    warmup_epochs: float = setting(1.0, "epochs of linear warm-up", at_least=0)
    step_epochs: int = setting(30, "of the step schedule: epochs between drops", at_least=1)
    step_factor: float = setting(0.1, "of the step schedule: the factor of a drop", at_least=0)
    min_lr: float = setting(0.0, "where the cosine ends", at_least=0)

    @property
    def is_schedule_free(self) -> bool:
        return self.name.startswith("schedulefree-")

    def __post_init__(self) -> None:
        super().__post_init__()
        with_momentum = self.name in ("sgd", "lars", "muon")
        if self.nesterov and with_momentum and self.momentum == 0:
            raise UserError(
                "optim.nesterov = true needs a momentum, and optim.momentum = 0",
                "set optim.nesterov = false or optim.momentum = 0.9",
            )
        if self.is_schedule_free and self.schedule != "constant":
            raise UserError(
                f"optim.name = {self.name!r} does without a schedule, and optim.schedule ="
                f" {self.schedule!r}",
                'set optim.schedule = "constant"; the warm-up stays',
            )
        if self.is_schedule_free and self.ema_decay:
            raise UserError(
                f"optim.name = {self.name!r} averages the weights itself, and optim.ema_decay ="
                f" {self.ema_decay}",
                "set optim.ema_decay = 0",
            )
        if self.is_schedule_free and 0 in (self.momentum, self.betas[0]):
            raise UserError(
                f"optim.name = {self.name!r} needs optim.momentum and optim.betas above 0",
                "leave them at 0.9",
            )


@dataclass(frozen=True, kw_only=True)
class ParallelConfig(Section):
    strategy: str = setting("auto", "single, ddp, dp, or auto: ddp where there are several devices")
    ranks: int = setting(
        0, "devices to train on; 0: every GPU, or 2 CPU ranks where there is none", at_least=0
    )
    micro_batch: Literal["auto"] | int = setting(
        0,
        "samples a device in one forward pass, also BatchNorm's statistics group; 0: one pass;"
        " auto: as many as fit",
        at_least=0,
    )
    bucket_mb: float = setting(25.0, "of ddp: megabytes exchanged at once", at_least=0.1)
    unused_parameters: bool = setting(
        False, "of ddp: some parameters get no gradient in some steps"
    )
    threads: int = setting(
        0, "CPU threads a rank; 0: the cores divided by the local ranks", at_least=0
    )
    affinity: bool = setting(True, "bind each rank to its share of the cores")


@dataclass(frozen=True, kw_only=True)
class MemoryConfig(Section):
    shrink: Literal["auto", "always", "never"] = setting(
        "auto",
        "halve the micro-batch where memory runs out; auto: unless that changes BatchNorm's groups",
    )
    smallest: int = setting(1, "samples a device that a micro-batch always keeps", at_least=1)
    regrow_after: int = setting(
        200, "steps until a halved micro-batch tries the larger size again; 0: never", at_least=0
    )
    margin: float = setting(
        0.1,
        "of micro_batch = auto: share of the free memory that is left unused",
        at_least=0,
        below=1,
    )


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig(Section):
    dtype: Literal["fp32", "tf32", "bf16", "fp16", "fp64", "auto"] = setting(
        "fp32",
        "bf16, fp16: autocast over fp32 weights; auto: what is fastest where it trains as well",
    )
    initial_scale: float = setting(65536.0, "of fp16: the first loss scale", at_least=1)
    growth_interval: int = setting(
        2000, "of fp16: finite steps before the scale doubles", at_least=1
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Section):
    every_steps: int = setting(0, "save every N optimizer steps; 0: not by steps", at_least=0)
    every_epochs: int = setting(1, "save every N epochs; 0: not by epochs", at_least=0)
    every_minutes: float = setting(0.0, "save every N minutes; 0: not by time", at_least=0)
    keep_last: int = setting(2, "newest checkpoints kept", at_least=1)
    keep_best: bool = setting(True, "also keep the checkpoint with the best metric")
    background: bool = setting(True, "write while training goes on")


@dataclass(frozen=True, kw_only=True)
class LaunchConfig(Section):
    max_restarts: int = setting(3, "restarts after a crash, from the last checkpoint", at_least=0)
    port: int = setting(0, "of the ranks' meeting point; 0: a free one", at_least=0, below=65536)
    timeout_s: float = setting(600.0, "longest wait for another rank in an exchange", at_least=1)


@dataclass(frozen=True, kw_only=True)
class RecordsConfig(Section):
    samples: bool = setting(False, "also record the sample indices of every step (the ledger)")
    gradient_norm: bool = setting(False, "record the gradient norm also where nothing is clipped")
    sinks: tuple[str, ...] = setting(
        (), "trackers that get the records while they are written: tensorboard, mlflow, wandb, csv"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.sinks:
            if name not in SINKS:
                hint = f"choose from {', '.join(SINKS)}"
                raise refused("records.sinks", self.sinks, f"names {name!r}, which is none", hint)


@dataclass(frozen=True, kw_only=True)
class SinksConfig(Section):
    folder: str = setting(
        "", "of tensorboard, csv and offline W&B, a folder a run in it; empty: the run folder"
    )
    mlflow_uri: str = setting(
        "", "of the MLflow server; empty: MLFLOW_TRACKING_URI, or what MLflow takes without it"
    )
    mlflow_experiment: str = setting("paceline", "the MLflow experiment that runs go into")
    wandb_project: str = setting("paceline", "the W&B project that runs go into")
    wandb_entity: str = setting("", "the W&B user or team; empty: the default of your account")
    wandb_mode: Literal["online", "offline"] = setting(
        "online", "offline: into files, which `wandb sync` sends later"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if "@" in self.mlflow_uri.partition("://")[2].partition("/")[0]:
            raise SettingError(
                "sinks.mlflow_uri holds a user name or password, and settings are written down",
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment",
                "sinks.mlflow_uri",
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig(Section):
    """One run, whole. `paceline config` prints it with where each value came from."""

    seed: int = setting(
        0, "of weights, sample order, augmentation and dropout", at_least=0, below=2**63
    )
    deterministic: bool = setting(
        False, "a resumed run is bit-equal to an uninterrupted one; may be slower"
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where to train")
    runs: str = setting("runs", "the folder that new run folders go into")
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    records: RecordsConfig = field(default_factory=RecordsConfig)
    sinks: SinksConfig = field(default_factory=SinksConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.pretrained and self.model.weights:
            raise UserError(
                "model.pretrained and model.weights both name the first weights", "set one of them"
            )
        if self.model.compile != "none" and self.parallel.strategy == "dp":
            raise UserError(
                f"model.compile = {self.model.compile!r} does not go with dp, whose replicas are made in each pass",
                "use --strategy ddp, or model.compile = 'none'",
            )
        if not self.runs.strip() or not self.runs.isprintable():
            raise refused("runs", self.runs, "is not a plain path", "name a folder, such as runs")
