"""Restored: what a checkpoint holds for the start of training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Restored"]


@dataclass(slots=True)
class Restored:
    """What a checkpoint holds and is put in place when training begins.

    Attributes:
        optimizers: Calls that load the optimizers whose parameter groups were added while training.
        rng: States of the random generators.
        validation: State of the validation loaders' own generators.
        whole: Whether the run continues the one that wrote the checkpoint.
        validates_first: Whether that run was about to validate.
    """

    optimizers: list[Callable[[], None]] = field(default_factory=list)
    rng: dict[str, Any] | None = None
    validation: dict[str, Any] | None = None
    whole: bool = False
    validates_first: bool = False

    def hold_rng(self, rng: dict[str, Any], validation: dict[str, Any] | None) -> None:
        """Keep the states of the generators, which are set when the loop begins."""
        self.rng, self.validation = rng, validation

    def note_validation(self, first: bool) -> None:
        """Say whether the run begins with the validation in which the checkpoint was written."""
        self.validates_first = first

    def forget_rng(self) -> None:
        """The generators have been set."""
        self.rng = None
