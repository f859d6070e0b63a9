"""Searches before a run: the learning rate and the batch size."""
