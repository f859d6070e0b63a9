"""Gives way to lightlib's module tree on the first import of `lightning`."""

import lightlib_lightning as compat

compat.replace(__name__)
