"""Experiments: hyperparameter searches in which each trial is a fit."""
