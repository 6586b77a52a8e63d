"""Adapting a backbone to labelled images: training, checkpoints, and the file of what was learned."""

from pliant.adapt.evaluate import evaluate, predict
from pliant.adapt.learned import load_adapted, restore, save
from pliant.adapt.run import headline, resume, run
from pliant.adapt.settings import Settings, settings
from pliant.interrupt import Interrupted

__all__ = [
    "Interrupted", "Settings", "evaluate", "headline", "load_adapted", "predict",
    "restore", "resume", "run", "save", "settings",
]  # fmt: skip
