"""Restored: the state from a checkpoint that is put in place when training starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Restored"]


@dataclass(frozen=True, slots=True)
class Restored:
    """State from a checkpoint that is put in place when training starts.

    Attributes:
        full: Whether the run continues the one that wrote the checkpoint.
        optimizers: Calls that load the optimizers whose parameter groups were added while training.
        rng: States of the random generators; None once they are set.
        validation: State of the validation loaders' own generators.
        validates_first: Whether that run was about to validate.
    """

    full: bool = False
    optimizers: Sequence[Callable[[], None]] = ()
    rng: dict[str, Any] | None = None
    validation: dict[str, Any] | None = None
    validates_first: bool = False
