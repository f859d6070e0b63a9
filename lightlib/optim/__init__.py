"""Optimizers that torch does not have, and groups of parameters. Names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.optim.groups import param_groups
    from lightlib.optim.lamb import LAMB
    from lightlib.optim.lars import LARS
    from lightlib.optim.lion import Lion
    from lightlib.optim.scaling import Scaling

__all__ = ["LAMB", "LARS", "Lion", "Scaling", "param_groups"]

_get, _names = lazy.attributes(
    __name__, {"LAMB": "lamb", "LARS": "lars", "Lion": "lion", "Scaling": "scaling", "param_groups": "groups"}
)

if not TYPE_CHECKING:  # type checkers see only the names above
    __getattr__, __dir__ = _get, _names
