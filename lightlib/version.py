"""The version of lightlib, in one place."""

__version__ = "0.1.0"
