"""lightlib: train PyTorch models. The public names; Lightning's names are aliases."""

from __future__ import annotations

import sys

from lightlib import lazy
from lightlib.start_folder import remember as _remember

_remember()  # the working directory, which the program may change

__all__, __getattr__, __dir__ = lazy.exports(__name__)

if lazy.TranslatedPaths not in sys.meta_path:
    sys.meta_path.append(lazy.TranslatedPaths)
