"""Conventions: variants of the loop and of the checks that another package may choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lightlib import report
from lightlib.errors import LightlibError

__all__ = [
    "LIGHTLIB", "Conventions", "Leniency", "Order", "assigned", "chosen", "following", "inspect_callback", "internal",
    "leniency", "order", "serve_internals", "use",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Order:
    """Variants of the loop; the defaults are lightlib's. A run reads them while it is set up, as `run.order`.

    Attributes:
        loads_late: Loaders are requested when they are needed, after `configure_optimizers`: those of validation within
            the sanity check, with its random generators, and those of training after it.
        restores_early: The state of the data module is loaded after `on_load_checkpoint` of the module, and the states
            of callbacks before `configure_optimizers`.
        counts_left: `current_epoch` counts an epoch that training ended within. A checkpoint requested at the end of an
            epoch sees the number that the epoch had.
        clears_late: Gradients are cleared between `training_step` and backward, not before `training_step`.
        counts_all: `global_step` counts the steps of all optimizers, also after a batch without a loss, and each before
            its schedules step.
        steps_early: Schedules that step with epochs do so before the `on_train_batch_end` of the last batch.
        checks_always: A sanity check runs also before a run that is resumed.
        draws_globally: The model summary runs the example input with the random generators of the program.
        notes_indices: A prediction notes the indices of its samples.
        keeps_arrays: NumPy arrays in batches reach the steps as they are, and do not become tensors.
        stops_at_length: A training epoch ends at the last batch that the loader's length promises, and does not read
            its sampler to the end, where a shuffling sampler with a generator draws once more.
        replaces_samplers: With several processes, loaders get torch's DistributedSampler with the seed of the run, and
            all processes draw the same random numbers. A prediction keeps an incomplete last batch.
        numbers_loaders: Names of metrics end with the number of the evaluation loader, also where loaders have names.
        logs_behind: The x-axis of the loggers is the number of steps before the one whose values are logged, and that
            of evaluation steps the number of their batch. `Logger.save` follows each row.
        teardown_always: `teardown` is called after an error as well.
        fails_as_failed: A run that an exception ends has the status "failed" instead of "interrupted".
    """

    loads_late: bool = False
    restores_early: bool = False
    counts_left: bool = False
    clears_late: bool = False
    counts_all: bool = False
    steps_early: bool = False
    checks_always: bool = False
    draws_globally: bool = False
    notes_indices: bool = False
    keeps_arrays: bool = False
    stops_at_length: bool = False
    replaces_samplers: bool = False
    numbers_loaders: bool = False
    logs_behind: bool = False
    teardown_always: bool = True
    fails_as_failed: bool = True


@dataclass(frozen=True, slots=True)
class Leniency:
    """Checks that a program may fail; the defaults are lightlib's.

    Attributes:
        warns: Mistakes that can be survived are warnings instead of errors.
        keeps_objects: Hyperparameters that are no plain values are stored in checkpoints, which then are not read
            without `weights_only=False`.
    """

    warns: bool = False
    keeps_objects: bool = False

    def tolerate(self, error: LightlibError, instead: str) -> None:
        """Raise the error, or warn once with the behaviour of this run.

        Args:
            error: The error, with the problem, the expectation and the fix.
            instead: The effect of the mistake without the error, as a clause: ``"nothing is validated"``.
        """
        if not self.warns:
            raise error
        report.warn_once(str(error), f"{error}\n  As in Lightning, {instead}; without compat this is an error.")


@dataclass(frozen=True, slots=True)
class Conventions:
    """The order and the leniency of the runs of a process.

    Example:
        >>> with following(Conventions(leniency=Leniency(warns=True))):
        ...     leniency().warns
        True
        >>> leniency().warns
        False
    """

    order: Order = field(default_factory=Order)
    leniency: Leniency = field(default_factory=Leniency)


LIGHTLIB = Conventions()
_chosen = LIGHTLIB
_internals: Callable[[Any, str], Any] | None = None
_assign: Callable[[Any, str, Any], None] | None = None
_inspect: Callable[[Any], None] | None = None


def use(conventions: Conventions) -> None:
    """Make the runs that begin from now on follow these conventions."""
    global _chosen  # noqa: PLW0603  one value for the process, set once
    _chosen = conventions


def chosen() -> Conventions:
    """Return the conventions of this process: lightlib's, or those that another package has set."""
    return _chosen


def order() -> Order:
    """Return the order of a run that begins now. A run keeps it as `run.order`."""
    return _chosen.order


def leniency() -> Leniency:
    """Return the leniency of the checks, which are made inside and outside of runs."""
    return _chosen.leniency


@contextmanager
def following(conventions: Conventions) -> Iterator[None]:
    """Follow these conventions in a block."""
    before = chosen()
    use(conventions)
    try:
        yield
    finally:
        use(before)


def serve_internals(
    lookup: Callable[[Any, str], Any] | None,
    assign: Callable[[Any, str, Any], None] | None = None,
    inspect: Callable[[Any], None] | None = None,
) -> None:
    """Set the functions that return and set the internals of Lightning which an object does not have itself.

    Args:
        lookup: ``(owner, name)``; it raises AttributeError for names that it does not know. None removes it.
        assign: ``(owner, name, value)``; it raises for names that cannot be set.
        inspect: Warns of private methods of Lightning that a callback overrides.
    """
    global _internals, _assign, _inspect
    _internals, _assign, _inspect = lookup, assign, inspect


def inspect_callback(callback: Any) -> None:
    """Warn of private methods that a callback overrides and that only Lightning calls."""
    if _inspect is not None:
        _inspect(callback)


def assigned(owner: Any, name: str, value: Any) -> bool:
    """Set an internal of Lightning. Return whether there is a function for that."""
    if _assign is not None:
        _assign(owner, name, value)
    return _assign is not None


def internal(owner: Any, name: str, message: str) -> Any:
    """Return an attribute that only Lightning's object has; called when the attribute is missing.

    Args:
        message: The error if nothing serves it.

    Raises:
        AttributeError: Compat is off, or does not provide this name.
    """
    if _internals is None:
        raise AttributeError(message, name=name, obj=owner)
    return _internals(owner, name)
