"""Checkpoints of a run: found, written, restored."""
