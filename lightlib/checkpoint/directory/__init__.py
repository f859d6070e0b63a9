"""Checkpoints that are a folder, which several processes write."""
