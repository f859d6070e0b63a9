"""Experiments: hyperparameter searches in which each trial is a fit."""

from __future__ import annotations

from lightlib import lazy
from lightlib.experiment.current import current as current  # its file has the same name

__all__, __getattr__, __dir__ = lazy.exports(__name__)
