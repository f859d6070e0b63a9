"""Experiments: hyperparameter searches in which each trial is a fit."""

from __future__ import annotations

from lightlib.experiment.current import CurrentTrial, current

__all__ = ["CurrentTrial", "current"]
