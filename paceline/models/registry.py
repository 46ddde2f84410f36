"""Models by name: small_resnet, torchvision's, timm's and transformers', `module:function`. Readable without torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from paceline.data.importing import import_function
from paceline.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from paceline.config.schema import RunConfig
    from paceline.models.named import Facts, Named
    from paceline.models.spec import ModelSpec

MODELS = {
    "small_resnet": "a ResNet for small images, with GroupNorm or BatchNorm",
    "gpt": "a small GPT for tokens:PATH; options depth, width, heads",
    "NAME": "any of torchvision's classifiers, for example resnet18 or vit_b_16",
    "timm:NAME": "any image model of timm",
    "hf:NAME": "a classifier or causal language model of transformers, by kind, folder or name on the hub",
    "module:function": "a function of yours that returns a torch.nn.Module or a ModelSpec",
}


def check_model(name: str) -> None:
    """Raises UserError for a name that is torchvision's by its form and that torchvision does not know."""
    if ":" in name or name in MODELS:
        return
    from paceline.models.from_torchvision import check_name

    check_name(name)


def make_spec(
    config: RunConfig,
    *,
    channels: int,
    num_classes: int,
    target: Tensor | None = None,
    class_counts: np.ndarray | None = None,
    image_size: int = 0,
    model: Any = None,
    loss: Any = None,
    metrics: Mapping[str, Any] | None = None,
) -> ModelSpec:
    """The ModelSpec of a run.

    channels, num_classes, image_size: of the data; 0 where the data has no such thing.
    target: of some samples, which tells what is to be learned from them; see `models/objective.py`.
    class_counts: training samples of each class, where they are known.
    model: an object given from Python instead of a name: a module, a function that makes one, or a ModelSpec.
    loss, metrics: functions of (output, target) with one value a sample; without a loss, `train.loss` names it.
    """
    from paceline.models.blocks import find_blocks
    from paceline.models.named import Facts
    from paceline.models.objective import extended, make_objective, num_outputs, task_of
    from paceline.models.spec import ModelSpec

    task = task_of(config.train.loss, target, num_classes)
    outputs = num_outputs(task, target, num_classes)
    facts = Facts(channels, image_size, outputs, task)
    built = _from_object(model) if model is not None else _from_name(config, facts)
    told: dict[str, Any] = {"target": target, "num_classes": num_classes, "metrics": metrics}
    if isinstance(built, ModelSpec):
        return extended(built, config.train, loss=loss, **told)
    aim = make_objective(config.train, loss=loss, class_counts=class_counts, **told)
    if model is None:
        _check_inputs(config, aim.task)
    return ModelSpec(
        build=_checked(built.build, config.model.name),
        metrics=aim.metrics,
        inputs=built.inputs,
        loss=aim.loss,
        measures=aim.measures,
        task=aim.task if loss is None else "",
        blocks=find_blocks,
        head=built.head,
        pretrained=built.pretrained,
    )


def _check_inputs(config: RunConfig, task: str) -> None:
    """What a model of ours is fed must be what it is for."""
    name = config.model.name
    if ":" in name or (name == "gpt") == (task == "tokens"):
        return
    if task == "tokens":
        raise UserError(
            f"model {name!r} takes images, and {config.data.source} gives sequences of tokens",
            "use --model gpt, or a function of yours",
        )
    raise UserError(
        f"model 'gpt' takes sequences of tokens, and {config.data.source} gives none",
        "use --data tokens:PATH, or another model",
    )


def _from_object(model: Any) -> ModelSpec | Named:
    from torch import nn

    from paceline.models.named import Named
    from paceline.models.spec import ModelSpec

    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, nn.Module):
        return Named(build=lambda: model)
    if callable(model):
        return Named(build=_checked(model, "the model function"))
    raise UserError(
        f"model= is a {type(model).__name__}",
        "give a torch.nn.Module, a function that makes one, or a ModelSpec",
    )


def _from_name(config: RunConfig, facts: Facts) -> ModelSpec | Named:
    name = config.model.name
    library = name.partition(":")[0]
    if ":" in name and library not in ("timm", "hf"):
        _refuse_pretrained(config)
        return _from_function(name, dict(config.model.options), facts.num_classes)
    if library == "hf":
        from paceline.models.from_hf import open_hf

        return open_hf(config.model, facts)
    if not facts.num_classes:
        raise UserError(
            f"model {name!r} needs the number of classes, and {config.data.source} does not tell it",
            "give the data set an attribute num_classes or classes, or bring a model of your own",
        )
    if name == "gpt":
        _refuse_pretrained(config)
        return _gpt(config, facts)
    if name == "small_resnet":
        _refuse_pretrained(config)
        return _small_resnet(config, facts)
    if library == "timm":
        from paceline.models.from_timm import open_timm

        return open_timm(config.model, facts)
    from paceline.models.from_torchvision import open_torchvision

    return open_torchvision(config.model, facts)


def _refuse_pretrained(config: RunConfig) -> None:
    if config.model.pretrained:
        raise UserError(
            f"model.pretrained: no library offers weights of {config.model.name}",
            "name a file in model.weights",
        )


def _small_resnet(config: RunConfig, facts: Facts) -> Named:
    from paceline.models.named import Named
    from paceline.models.small_resnet import SmallResNet

    model = config.model
    own = {"width": model.width, "norm": model.norm, "dropout": model.dropout}
    options = {**own, **model.options}
    return Named(build=lambda: SmallResNet(facts.channels, facts.num_classes, **options))


def _gpt(config: RunConfig, facts: Facts) -> Named:
    from paceline.models.gpt import GPT
    from paceline.models.named import Named

    options = {"dropout": config.model.dropout, **config.model.options}
    return Named(build=lambda: GPT(facts.num_classes, config.data.sequence_length, **options))


def _from_function(name: str, options: dict[str, Any], num_classes: int) -> ModelSpec | Named:
    from paceline.models.named import Named
    from paceline.models.spec import ModelSpec

    function = import_function(name, "model.name")
    if "num_classes" in inspect.signature(function).parameters:
        options.setdefault("num_classes", num_classes)
    build = _checked(lambda: function(**options), name)
    made = build()
    # A module is built again, from the run's seed, when it is wanted.
    return made if isinstance(made, ModelSpec) else Named(build=build)


def _checked(build: Callable[[], Any], name: str) -> Callable[[], Any]:
    """`build`, with a wrong argument or a wrong result told in one sentence."""

    def checked() -> Any:
        from torch import nn

        from paceline.models.spec import ModelSpec

        try:
            module = build()
        except TypeError as error:
            raise UserError(f"{name} could not be built: {error}", "check model.options") from error
        if not isinstance(module, (nn.Module, ModelSpec)):
            raise UserError(
                f"{name} returned a {type(module).__name__}",
                "return a torch.nn.Module or a paceline.ModelSpec",
            )
        return module

    return checked
