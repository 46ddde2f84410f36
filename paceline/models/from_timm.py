"""`timm:NAME`: the image models of timm, with the weights that it offers for them. Needs the extra `timm`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from paceline.config.schema import ModelConfig
from paceline.data.generators import generators_kept
from paceline.errors import UserError, nearest
from paceline.models.blocks import find_head
from paceline.models.named import Facts, Named, import_extra, tried


def open_timm(config: ModelConfig, facts: Facts) -> Named:
    timm = import_extra("timm", "timm", config.name)
    name = config.name.partition(":")[2]
    base, _, tag = name.partition(".")
    if not timm.is_model(base):
        near = nearest(base, timm.list_models())
        raise UserError(f"unknown model {config.name!r}", near.replace("'", "'timm:", 1))
    if config.pretrained:
        name = f"{base}.{_tag(timm, base, tag, config.pretrained)}"
    native = timm.get_pretrained_cfg(base, allow_unregistered=True)
    options = {"in_chans": facts.channels or 3, **config.options}
    if facts.image_size and getattr(native, "fixed_input_size", False):
        options.setdefault("img_size", facts.image_size)
    size = native.input_size[-1] if native else 224
    build = functools.partial(_build, timm, name, num_classes=facts.num_classes, **options)
    return Named(
        build=tried(
            build,
            config.name,
            options["in_chans"],
            facts.image_size,
            f"set data.image_size, for example {size}",
        ),
        head=_head,
        pretrained=functools.partial(_fetch, timm, name, options) if config.pretrained else None,
    )


def _build(timm: Any, name: str, **options: Any) -> nn.Module:
    """Some models of one size take no `img_size`; whether theirs fits, the trial tells."""
    create: Callable[..., nn.Module] = functools.partial(timm.create_model, name)
    try:
        return create(**options)
    except TypeError as error:
        if "img_size" not in str(error) or "img_size" not in options:
            raise
        del options["img_size"]
        return create(**options)


def _tag(timm: Any, base: str, tag: str, wanted: bool | str) -> str:
    """The tag of the weights: `model.pretrained`'s, the name's own, or timm's default."""
    offered = [each.partition(".")[2] for each in timm.list_pretrained(f"{base}.*")]
    if not offered:
        raise UserError(f"timm has no pretrained weights of {base}", "set model.pretrained = false")
    chosen = tag if wanted is True else str(wanted)
    if not chosen:
        default = timm.get_pretrained_cfg(base)
        return str(default.tag) if default and default.tag else offered[0]
    if chosen not in offered:
        raise UserError(
            f"model.pretrained = {chosen!r}: timm has no such weights of {base}",
            nearest(chosen, offered),
        )
    return chosen


def _fetch(timm: Any, name: str, options: dict[str, Any]) -> Mapping[str, Tensor]:
    """The state of the pretrained model with the head of its own classes; timm fits positions and channels itself."""
    try:
        with generators_kept():
            module = _build(timm, name, pretrained=True, **options)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"the weights of timm:{name} could not be fetched: {str(error).partition(chr(10))[0]}",
            "check the network, or name a file in model.weights",
        ) from error
    return module.state_dict()


def _head(module: nn.Module) -> Sequence[str]:
    known = getattr(module, "default_cfg", {}).get("classifier")
    names = [known] if isinstance(known, str) else list(known or [])
    found = [name for name in names if name in dict(module.named_modules())]
    return found or find_head(module)
