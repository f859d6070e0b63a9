"""Trials: the fit of an experiment in a process of its own."""
