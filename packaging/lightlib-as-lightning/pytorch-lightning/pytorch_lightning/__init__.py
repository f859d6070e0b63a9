"""Gives way to lightlib's module tree on the first import of `pytorch_lightning`."""

from lightlib import compat

compat.replace(__name__)
