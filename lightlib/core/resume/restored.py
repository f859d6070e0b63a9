"""Restored: the state from a checkpoint that is put in place when training starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Restored"]


@dataclass(slots=True)
class Restored:
    """State from a checkpoint that is put in place when training starts.

    Attributes:
        optimizers: Calls that load the optimizers whose parameter groups were added while training.
        rng: States of the random generators.
        validation: State of the validation loaders' own generators.
        full: Whether the run continues the one that wrote the checkpoint.
        validates_first: Whether that run was about to validate.
    """

    optimizers: list[Callable[[], None]] = field(default_factory=list)
    rng: dict[str, Any] | None = None
    validation: dict[str, Any] | None = None
    full: bool = False
    validates_first: bool = False

    def hold_rng(self, rng: dict[str, Any], validation: dict[str, Any] | None) -> None:
        """Keep the states of the generators, which are set when the loop begins."""
        self.rng, self.validation = rng, validation

    def note_validation(self, first: bool) -> None:
        """Note whether the run begins with the validation in which the checkpoint was written."""
        self.validates_first = first

    def forget_rng(self) -> None:
        """The generators have been set."""
        self.rng = None
