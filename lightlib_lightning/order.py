"""Lightning's conventions: its order of the loop, and the mistakes that it accepts."""

from __future__ import annotations

from lightlib.conventions import Conventions, Leniency, Order

__all__ = ["LIGHTNING"]

LIGHTNING = Conventions(
    Order(
        loads_late=True,
        restores_early=True,
        counts_left=True,
        clears_late=True,
        counts_all=True,
        steps_early=True,
        checks_always=True,
        draws_globally=True,
        notes_indices=True,
        keeps_arrays=True,
        stops_at_length=True,
        replaces_samplers=True,
        numbers_loaders=True,
        logs_behind=True,
        teardown_always=False,
        fails_as_failed=False,
    ),
    Leniency(warns=True, keeps_objects=True),
)
