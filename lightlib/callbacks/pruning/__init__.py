"""Prune the weights of a model while it trains."""
