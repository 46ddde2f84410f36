"""Models by name: small_resnet, torchvision's classifiers, and `module:function`. Readable without torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from paceline.data.importing import import_function
from paceline.errors import UserError, nearest

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from paceline.config.schema import RunConfig
    from paceline.data.batch import Batch
    from paceline.models.spec import ModelSpec

MODELS = {
    "small_resnet": "a ResNet for small images, with GroupNorm or BatchNorm",
    "gpt": "a small GPT for tokens:PATH; options depth, width, heads",
    "NAME": "any of torchvision's classifiers, for example resnet18 or vit_b_16",
    "module:function": "a function of yours that returns a torch.nn.Module or a ModelSpec",
}


def make_spec(
    config: RunConfig,
    *,
    channels: int,
    num_classes: int,
    target: Tensor | None = None,
    class_counts: np.ndarray | None = None,
    model: Any = None,
    loss: Any = None,
    metrics: Mapping[str, Any] | None = None,
) -> ModelSpec:
    """The ModelSpec of a run.

    channels, num_classes: of the data; 0 where the data has no such thing.
    target: of some samples, which tells what is to be learned from them; see `models/objective.py`.
    class_counts: training samples of each class, where they are known.
    model: an object given from Python instead of a name: a module, a function that makes one, or a ModelSpec.
    loss, metrics: functions of (output, target) with one value a sample; without a loss, `train.loss` names it.
    """
    from paceline.models.blocks import find_blocks
    from paceline.models.objective import extended, make_objective, num_outputs, task_of
    from paceline.models.spec import ModelSpec

    outputs = num_outputs(task_of(config.train.loss, target, num_classes), target, num_classes)
    built = _from_object(model) if model is not None else _from_name(config, channels, outputs)
    facts: dict[str, Any] = {"target": target, "num_classes": num_classes, "metrics": metrics}
    if isinstance(built, ModelSpec):
        return extended(built, config.train, loss=loss, **facts)
    aim = make_objective(config.train, loss=loss, class_counts=class_counts, **facts)
    if model is None:
        _check_inputs(config, aim.task)
    from_torchvision = (
        model is None and ":" not in config.model.name and config.model.name != "small_resnet"
    )
    inputs = _three_channels if from_torchvision and channels == 1 else _input
    return ModelSpec(
        build=built,
        metrics=aim.metrics,
        inputs=inputs,
        loss=aim.loss,
        measures=aim.measures,
        task=aim.task if loss is None else "",
        blocks=find_blocks,
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


def _input(batch: Batch) -> tuple[Tensor, ...]:
    return (batch.data["input"],)


def _three_channels(batch: Batch) -> tuple[Tensor, ...]:
    return (batch.data["input"].expand(-1, 3, -1, -1),)


def _from_object(model: Any) -> Any:
    from torch import nn

    from paceline.models.spec import ModelSpec

    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, nn.Module):
        return lambda: model
    if callable(model):
        return _checked(model, "the model function")
    raise UserError(
        f"model= is a {type(model).__name__}",
        "give a torch.nn.Module, a function that makes one, or a ModelSpec",
    )


def _from_name(config: RunConfig, channels: int, num_classes: int) -> Any:
    name, options = config.model.name, dict(config.model.options)
    if ":" in name:
        return _from_function(name, options, num_classes)
    if not num_classes:
        raise UserError(
            f"model {name!r} needs the number of classes, and {config.data.source} does not tell it",
            "give the data set an attribute num_classes or classes, or bring a model of your own",
        )
    if name == "gpt":
        from paceline.models.gpt import GPT

        options = {"dropout": config.model.dropout, **options}
        return _checked(lambda: GPT(num_classes, config.data.sequence_length, **options), name)
    if name == "small_resnet":
        from paceline.models.small_resnet import SmallResNet

        options = {
            "width": config.model.width,
            "norm": config.model.norm,
            "dropout": config.model.dropout,
            **options,
        }
        return _checked(lambda: SmallResNet(channels, num_classes, **options), name)
    return _from_torchvision(name, options, num_classes)


def _from_torchvision(name: str, options: dict[str, Any], num_classes: int) -> Any:
    import torchvision

    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise UserError(f"unknown model {name!r}", nearest(name, ["small_resnet", "gpt", *known]))
    if "weights" in options:
        raise UserError(
            "model.options.weights is not used", "name a safetensors file in model.weights"
        )
    return _checked(
        lambda: torchvision.models.get_model(name, num_classes=num_classes, **options), name
    )


def _from_function(name: str, options: dict[str, Any], num_classes: int) -> Any:
    from paceline.models.spec import ModelSpec

    function = import_function(name, "model.name")
    if "num_classes" in inspect.signature(function).parameters:
        options.setdefault("num_classes", num_classes)
    build = _checked(lambda: function(**options), name)
    made = build()
    # A module is built again, from the run's seed, when it is wanted.
    return made if isinstance(made, ModelSpec) else build


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
