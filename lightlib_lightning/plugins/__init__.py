"""Plugins and strategies under Lightning's protocols: adapters around lightlib's own."""
