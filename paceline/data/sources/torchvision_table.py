"""What torchvision does not say of its sets: which splits are trained on and judged by, and what suits the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Known:
    """One of torchvision's sets.

    cls: its class there. splits: names to keyword arguments of the constructor, training first, then what judges it;
    one split: a part is held out. folder: where its files lie below data.folder. in_memory: small images of one size.
    image_size: where data.image_size is 0, for pictures of many sizes. variants: values of the keyword `split` that
    may follow the colon, the usual one first. download: whether torchvision can. needs: packages beyond torchvision's.
    """

    cls: str
    folder: str
    splits: Mapping[str, Mapping[str, Any]]
    in_memory: bool = False
    augment: str = "resized-crop-flip"
    image_size: int = 224
    num_classes: int = 0
    variants: Sequence[str] = ()
    download: bool = True
    needs: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def _by_flag(cls: str, folder: str, **kwargs: Any) -> Known:
    splits = {"train": {"train": True}, "test": {"train": False}}
    return Known(cls=cls, folder=folder, splits=splits, in_memory=True, **kwargs)


def _by_name(cls: str, folder: str, *names: str, **kwargs: Any) -> Known:
    return Known(cls=cls, folder=folder, splits={n: {"split": n} for n in names}, **kwargs)


def _unsplit(cls: str, folder: str, **kwargs: Any) -> Known:
    return Known(cls=cls, folder=folder, splits={"all": {}}, **kwargs)


_DIGITS = {"in_memory": True, "augment": "shift"}  # mirrored, they would be no digits

SETS: dict[str, Known] = {
    "mnist": _by_flag("MNIST", "MNIST/raw", augment="shift"),
    "fashion-mnist": _by_flag("FashionMNIST", "FashionMNIST/raw", augment="crop-flip"),
    "kmnist": _by_flag("KMNIST", "KMNIST/raw", augment="shift"),
    "qmnist": _by_flag("QMNIST", "QMNIST/raw", augment="shift"),
    "emnist": _by_flag(
        "EMNIST",
        "EMNIST/raw",
        augment="shift",
        variants=("balanced", "byclass", "bymerge", "letters", "digits", "mnist"),
    ),
    "usps": _by_flag("USPS", "", augment="shift", num_classes=10),
    "semeion": _unsplit("SEMEION", "", num_classes=10, **_DIGITS),
    "svhn": _by_name("SVHN", "", "train", "test", num_classes=10, **_DIGITS),
    "cifar10": _by_flag("CIFAR10", "cifar-10-batches-py", augment="crop-flip"),
    "cifar100": _by_flag("CIFAR100", "cifar-100-python", augment="crop-flip"),
    "stl10": _by_name(
        "STL10", "stl10_binary", "train", "test", in_memory=True, augment="crop-flip"
    ),
    "fer2013": _by_name(
        "FER2013", "fer2013", "train", "test", num_classes=7, image_size=48, download=False
    ),
    "gtsrb": _by_name("GTSRB", "gtsrb", "train", "test", num_classes=43, image_size=48),
    "eurosat": _unsplit("EuroSAT", "eurosat", image_size=64),
    "pcam": _by_name(
        "PCAM",
        "pcam",
        *("train", "val", "test"),
        num_classes=2,
        image_size=96,
        needs=("h5py", "gdown"),
    ),
    "caltech101": _unsplit("Caltech101", "caltech101", needs=("gdown",)),
    "caltech256": _unsplit("Caltech256", "caltech256", needs=("gdown",)),
    "country211": _by_name("Country211", "country211", "train", "valid", "test"),
    "dtd": _by_name("DTD", "dtd", "train", "val", "test"),
    "fgvc-aircraft": _by_name("FGVCAircraft", "fgvc-aircraft-2013b", "train", "val", "test"),
    "flowers102": _by_name("Flowers102", "flowers-102", "train", "val", "test", num_classes=102),
    "food101": _by_name("Food101", "food-101", "train", "test"),
    "imagenet": _by_name("ImageNet", "", "train", "val", download=False),
    "imagenette": _by_name("Imagenette", "imagenette2", "train", "val"),
    "oxford-iiit-pet": _by_name("OxfordIIITPet", "oxford-iiit-pet", "trainval", "test"),
    "places365": _by_name("Places365", "", "train-standard", "val", options={"small": True}),
    "rendered-sst2": _by_name("RenderedSST2", "rendered-sst2", "train", "val", "test"),
    "stanford-cars": _by_name("StanfordCars", "stanford_cars", "train", "test", download=False),
    "sun397": _unsplit("SUN397", "SUN397"),
}
