"""Gives way to lightlib's module tree on the first import of `lightning_fabric`."""

from lightlib import compat

compat.replace(__name__)
