"""Augmentations of training images, by name, drawn for each sample by itself; what is drawn never depends on its batch.

`registry.py` has the names; a new step is a class in one of the other files and a line there.
"""

from paceline.data.augment.base import Augment, BadAugment, NoAugment
from paceline.data.augment.registry import (
    PRESETS,
    STEPS,
    Pipeline,
    build_augment,
    check_augment,
    takes_whole_images,
)

__all__ = [
    "PRESETS",
    "STEPS",
    "Augment",
    "BadAugment",
    "NoAugment",
    "Pipeline",
    "build_augment",
    "check_augment",
    "takes_whole_images",
]
