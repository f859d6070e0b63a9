"""Engines: clusters that place, start and restart the workers of an experiment."""
