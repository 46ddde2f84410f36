"""torchvision's classifiers by name, with the weights that it offers for them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torchvision
from torch import Tensor, nn

from paceline.config.schema import ModelConfig
from paceline.data.generators import generators_kept
from paceline.errors import UserError, nearest
from paceline.models.named import Facts, Named, in_three_channels, input_of, tried


def check_name(name: str) -> None:
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        others = ["small_resnet", "gpt", "timm:NAME", "hf:NAME"]
        raise UserError(f"unknown model {name!r}", nearest(name, [*others, *known]))


def open_torchvision(config: ModelConfig, facts: Facts) -> Named:
    name, options = config.name, dict(config.options)
    check_name(name)
    if "weights" in options:
        raise UserError(
            "model.options.weights is not used", "set model.pretrained, or model.weights to a file"
        )
    fetch = None
    if config.pretrained:
        fetch = functools.partial(_fetch, name, _weights(name, config.pretrained), dict(options))
    size = _native_size(name)
    options = _defaults(name, facts.image_size, bool(config.pretrained)) | options
    build = functools.partial(
        torchvision.models.get_model, name, num_classes=facts.num_classes, **options
    )
    hint = f"set data.image_size, for example {size}"
    if name == "inception_v3":
        hint += ", or model.options.aux_logits = false for 75 and more"
    return Named(
        build=tried(build, name, 3, facts.image_size, hint),
        inputs=in_three_channels if facts.channels == 1 else input_of,
        pretrained=fetch,
    )


def _defaults(name: str, image_size: int, pretrained: bool) -> dict[str, Any]:
    """What the builder is told unless model.options says otherwise.

    The two Inceptions are initialized as the builders themselves say they will; a ViT's positions are as many as the
    images need, unless they come with the weights.
    """
    if name in ("googlenet", "inception_v3"):
        return {"init_weights": True}
    if image_size and not pretrained:
        if name.startswith("vit_"):
            return {"image_size": image_size}
        if name.startswith("maxvit_"):
            return {"input_size": (image_size, image_size)}
    return {}


def _weights(name: str, tag: bool | str) -> Any:
    offered = torchvision.models.get_model_weights(name)
    tags = [each.name for each in offered]
    if tag is True or tag == "DEFAULT":
        return offered["DEFAULT"]
    if tag not in tags:
        raise UserError(
            f"model.pretrained = {tag!r}: torchvision has no such weights of {name}",
            nearest(str(tag), tags),
        )
    return offered[str(tag)]


def _fetch(name: str, weights: Any, options: dict[str, Any]) -> Mapping[str, Tensor]:
    """The state of torchvision's own pretrained model, which is where it mends the names of old files."""
    if name in ("googlenet", "inception_v3"):
        options = {"aux_logits": True} | options
    try:
        with generators_kept():
            module: nn.Module = torchvision.models.get_model(name, weights=weights, **options)
    except OSError as error:  # URLError and HTTPError are OSErrors
        raise UserError(
            f"{weights.url} could not be fetched: {error}",
            "check the network, or put the file there yourself and name it in model.weights",
        ) from error
    return module.state_dict()


def _native_size(name: str) -> int:
    """The side of the images that torchvision's own weights were made for."""
    transforms = torchvision.models.get_model_weights(name)["DEFAULT"].transforms
    return int(transforms.keywords["crop_size"])
