"""Checkpoints: saved whole or not at all, checked before they are believed."""

from paceline.checkpoint.folders import best_candidate, candidates
from paceline.checkpoint.read import Checkpoint, newest_whole, open_checkpoint
from paceline.checkpoint.save import SaveReport
from paceline.checkpoint.shards import local_slices
from paceline.checkpoint.store import PHASES, Store
from paceline.checkpoint.weights import load_weights, save_weights

__all__ = [
    "PHASES",
    "Checkpoint",
    "SaveReport",
    "Store",
    "best_candidate",
    "candidates",
    "load_weights",
    "local_slices",
    "newest_whole",
    "open_checkpoint",
    "save_weights",
]
