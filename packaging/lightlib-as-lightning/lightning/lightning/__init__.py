"""Gives way to lightlib's module tree on the first import of `lightning`."""

import lightlib_lightning

lightlib_lightning.replace(__name__)
