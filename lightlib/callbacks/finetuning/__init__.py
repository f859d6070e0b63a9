"""Freeze and unfreeze parts of a model while it trains."""
