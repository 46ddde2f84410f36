"""Samples on their way to the model: sources, order, augmentation, loader. Ranks are plain numbers to it."""
