"""torchvision's, timm's and transformers' models: other images, pretrained weights, what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor

from paceline.config.load import load_config
from paceline.data.batch import Batch
from paceline.errors import UserError
from paceline.models.registry import make_spec
from paceline.models.spec import ModelSpec
from paceline.models.weights import fit_weights

HF = {
    "hf:vit": {"hidden_size": 16, "num_attention_heads": 2, "patch_size": 8},
    "hf:bert": {"hidden_size": 16, "num_attention_heads": 2, "vocab_size": 50},
    "hf:gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50},
}
SMALL_BODY = {"num_hidden_layers": 2, "intermediate_size": 16}


def spec_of(name: str, channels: int = 3, size: int = 32, **values: Any) -> ModelSpec:
    flags = {"model.name": name} | {k.replace("__", "."): v for k, v in values.items()}
    config = load_config(flags=flags).config
    return make_spec(config, channels=channels, num_classes=5, image_size=size)


def output(spec: ModelSpec, value: Tensor) -> Tensor:
    batch = Batch(
        {"input": value, "target": torch.tensor([1, 2])}, torch.arange(2), torch.ones(2), 2
    )
    found: Tensor = spec.build()(*spec.inputs(batch))
    spec.loss(found, batch).loss.backward()
    return found


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["timm:test_vit", "timm:test_resnet", "mobilenet_v3_small"])
def test_images_of_any_size_and_channels(name: str, channels: int) -> None:
    if ":" in name:
        pytest.importorskip("timm")
    assert output(spec_of(name, channels), torch.randn(2, channels, 32, 32)).shape == (2, 5)


@pytest.mark.parametrize("name", list(HF))
def test_transformers_models_are_built_without_a_download(name: str) -> None:
    pytest.importorskip("transformers")
    options = HF[name] | ({} if name == "hf:gpt2" else SMALL_BODY)
    images = name == "hf:vit"
    value = torch.randn(2, 1, 32, 32) if images else torch.randint(0, 50, (2, 7))
    spec = spec_of(name, 1 if images else 0, 32 if images else 0, model__options=options)
    assert output(spec, value).shape == (2, 5)
    module = spec.build()
    assert len(spec.blocks(module)) == 2
    assert len(spec.head(module)) == 1


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**HF["hf:vit"], **SMALL_BODY, image_size=32, num_labels=3)
    saved = transformers.ViTForImageClassification(config)
    saved.save_pretrained(tmp_path)
    spec = spec_of(f"hf:{tmp_path}", model__pretrained=True)
    module = spec.build()
    assert spec.pretrained is not None
    state = module.state_dict()
    fitted, notes = fit_weights(spec.pretrained(), state, spec.head(module), "replace")
    assert notes == ["a new head, not from the weights: classifier.weight, classifier.bias"]
    assert all(torch.equal(fitted[n], v) for n, v in saved.state_dict().items() if "vit." in n)


def test_torchvisions_weights_are_fetched_by_its_own_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the hub has kept is read without a network; a missing file is a sentence."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    spec = spec_of("squeezenet1_1", model__pretrained=True)
    assert spec.pretrained is not None
    monkeypatch.setattr(
        torch.hub, "download_url_to_file", lambda *a, **k: (_ for _ in ()).throw(OSError("offline"))
    )
    with pytest.raises(UserError, match=r"download.pytorch.org.* could not be fetched: offline"):
        spec.pretrained()
    theirs = torchvision.models.squeezenet1_1().state_dict()
    url = torchvision.models.SqueezeNet1_1_Weights.DEFAULT.url
    kept = tmp_path / "hub" / "checkpoints" / url.rpartition("/")[2]
    kept.parent.mkdir(parents=True, exist_ok=True)
    torch.save(theirs, kept)
    found = spec.pretrained()
    assert all(torch.equal(found[name], value) for name, value in theirs.items())


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("alexnet", {"size": 32}, "alexnet does not fit images of 32 x 32.*\n.*image_size.*224"),
        ("vit_b_16", {"size": 20}, "vit_b_16 does not fit images of 20 x 20.*indivisible"),
        ("inception_v3", {"size": 75}, "does not fit.*\n.*example 299, or .*aux_logits"),
        ("resnet50", {"model__pretrained": "IMAGENET1K_V3"}, "no such weights.*\n.*IMAGENET1K_V"),
        ("small_resnet", {"model__pretrained": True}, "no library offers weights of small_resnet"),
        ("timm:resnet100", {}, "unknown model 'timm:resnet100'.*\n.*'timm:resnet"),
        ("timm:resnet50", {"model__pretrained": "a1_in2k"}, "no such weights.*\n.*'a1_in1k'"),
        ("hf:vitt", {}, "unknown model 'hf:vitt'.*\n.*'hf:vit'"),
        ("hf:vit", {"model__pretrained": True}, "is a kind of model, and has no weights"),
    ],
)
def test_bad_input(name: str, values: dict[str, Any], told: str) -> None:
    if ":" in name:
        pytest.importorskip("timm" if name.startswith("timm") else "transformers")
    with pytest.raises(UserError, match=f"(?s){told}"):
        spec_of(name, **values).build()


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("timm:resnet18", "timm", "timm"), ("hf:vit", "transformers", "hf")],
)
def test_a_missing_extra_names_its_command(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"(?s){package}.*pip install 'paceline\[{extra}\]'"):
        spec_of(name)
