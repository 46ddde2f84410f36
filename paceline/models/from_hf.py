"""`hf:NAME`: classifiers and causal language models of transformers. Needs the extra `hf`.

NAME is a kind of model (`vit`, `bert`, `gpt2`: built from its default configuration), a folder with a config.json, or
a model of the hub. Without `model.pretrained` no weights are read: only the configuration is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from paceline.config.schema import ModelConfig
from paceline.data.generators import generators_kept
from paceline.errors import UserError, nearest
from paceline.models.named import Facts, Named, import_extra, in_three_channels, input_of, tried


def open_hf(config: ModelConfig, facts: Facts) -> Named:
    hub = import_extra("transformers", "hf", config.name)
    name = config.name.partition(":")[2]
    described = _configuration(hub, name, config)
    builder = _builder(hub, described, facts, config.name)
    native = getattr(described, "image_size", None)
    if facts.channels:
        if hasattr(described, "num_channels"):
            described.num_channels = 3 if config.pretrained else facts.channels
        if native is not None and facts.image_size and not config.pretrained:
            described.image_size = facts.image_size
    if builder is not hub.AutoModelForCausalLM:
        described.num_labels = facts.num_classes
    elif facts.num_classes and not config.pretrained:
        described.vocab_size = facts.num_classes
    build = functools.partial(_build, builder, described)
    channels = getattr(described, "num_channels", 3)
    image_size = facts.image_size if facts.channels else 0
    hint = f"set data.image_size, for example {native if isinstance(native, int) else 224}"
    return Named(
        build=tried(build, config.name, channels, image_size, hint),
        inputs=in_three_channels if facts.channels == 1 and channels == 3 else input_of,
        pretrained=_fetcher(builder, name, config.pretrained),
    )


def _build(builder: Any, described: Any) -> nn.Module:
    """The model, whose output is its logits alone: (n, classes), or (n, positions, words) of a language model."""
    module: nn.Module = builder.from_config(described)
    if getattr(described, "pad_token_id", None) is None:
        described.pad_token_id = -1  # no token is one: a classifier looks at the last of each text
    module.register_forward_hook(lambda module, inputs, output: output.logits)
    return module


def _configuration(hub: Any, name: str, config: ModelConfig) -> Any:
    """The configuration that NAME stands for, with model.options on top."""
    options = dict(config.options)
    kinds = hub.models.auto.configuration_auto.CONFIG_MAPPING
    try:
        if name in kinds:
            if config.pretrained:
                raise UserError(
                    f"model.pretrained: {config.name} is a kind of model, and has no weights",
                    "name a model of the hub, such as hf:google/vit-base-patch16-224, or a folder",
                )
            return hub.AutoConfig.for_model(name, **options)
        if _is_folder(name) or "/" in name:
            return hub.AutoConfig.from_pretrained(name, **options)
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"model.name = {config.name!r} cannot be read: {reason}",
            "name a folder with a config.json, a kind of model (hf:vit), or check the network",
        ) from error
    raise UserError(
        f"unknown model {config.name!r}",
        nearest(config.name, [f"hf:{kind}" for kind in sorted(kinds)]),
    )


def _is_folder(name: str) -> bool:
    return Path(name).is_dir()


def _builder(hub: Any, described: Any, facts: Facts, name: str) -> Any:
    """Which of transformers' families of heads: by the data, and by what the configuration says it is."""
    families = {
        "image": hub.AutoModelForImageClassification,
        "language": hub.AutoModelForCausalLM,
        "text": hub.AutoModelForSequenceClassification,
    }
    made_for = " ".join(getattr(described, "architectures", None) or [])
    if facts.channels:
        task = "image"
    elif facts.task == "tokens" or made_for.endswith(("ForCausalLM", "LMHeadModel")):
        task = "language"
    else:
        task = "text"
    family = families[task]
    if type(described) not in family._model_mapping:
        raise UserError(
            f"model.name = {name!r} has no {family.__name__.removeprefix('AutoModelFor')} form",
            "choose another model for this data",
        )
    return family


def _fetcher(
    builder: Any, name: str, wanted: bool | str
) -> Callable[[], Mapping[str, Tensor]] | None:
    if not wanted:
        return None

    def fetch() -> Mapping[str, Tensor]:
        """The weights that the hub or the folder has; what the library only initializes is left out."""
        revision = {} if wanted is True else {"revision": str(wanted)}
        try:
            with generators_kept():
                module, found = builder.from_pretrained(name, output_loading_info=True, **revision)
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise UserError(
                f"the weights of hf:{name} could not be fetched: {reason}",
                "check the network and the name, or name a file in model.weights",
            ) from error
        state: dict[str, Tensor] = nn.Module.state_dict(module)
        return {key: value for key, value in state.items() if key not in found["missing_keys"]}

    return fetch
