"""Gives way to lightlib's module tree on the first import of `pytorch_lightning`."""

import lightlib_lightning

lightlib_lightning.replace(__name__)
