"""Presets: named groups of callbacks, and the callbacks that only they need."""
