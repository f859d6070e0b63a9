"""Searcher: the base class of searchers of your own, and the actions that they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Action", "Continue", "Create", "Pause", "SearchTrial", "Searcher", "Shutdown", "Stop"]


class SearchTrial(NamedTuple):
    """A trial, as a searcher gets it.

    Attributes:
        number: From 0: trials are numbered in the order of their `Create`.
        hparams: Its hyperparameters by dotted key.
    """

    number: int
    hparams: Mapping[str, Any]


@dataclass(frozen=True)
class Create:
    """Create a trial.

    Args:
        hparams: Values by dotted key, which the section ``hyperparameters`` must allow. Missing ones are drawn at
            random, from the seed of the experiment and the number of the trial. Default: all are.
        until: The length at which it is validated and pauses, in the unit of ``max_length``; a program pauses at its
            first report from there on. Default: it trains to its end.
    """

    hparams: Mapping[str, Any] = field(default_factory=dict)
    until: int | None = None


@dataclass(frozen=True)
class Stop:
    """Let a trial save a checkpoint after its present step, and end.

    Args:
        trial: It, or its number.
    """

    trial: SearchTrial | int


@dataclass(frozen=True)
class Pause:
    """Let a trial save a checkpoint after its present step, and give back its slots.

    Args:
        trial: It, or its number.
    """

    trial: SearchTrial | int


@dataclass(frozen=True)
class Continue:
    """Continue a trial that is paused, from its newest checkpoint.

    Args:
        trial: It, or its number.
        until: The length at which it pauses again, as in `Create`. A trial that runs reaches its earlier one first.
    """

    trial: SearchTrial | int
    until: int | None = None


@dataclass(frozen=True)
class Shutdown:
    """End the search. Trials that run save a checkpoint and stop."""


Action = Create | Stop | Pause | Continue | Shutdown


class Searcher(ABC):
    """Base class of searchers of your own; an experiment file names yours by ``searcher.class_path``.

    Each method returns actions, or None for none. An action for a trial that has ended has no effect. The search ends
    with `Shutdown`, or when no trial runs and none is to run.

    One worker runs the searcher; another one does so when that worker is gone. The state is then that before the last
    actions that took effect, so a method may be called again with the same event. It must not depend on anything else.

    Example:
        >>> class Best(Searcher):
        ...     def __init__(self, trials=4):
        ...         self.trials, self.best = trials, None
        ...
        ...     def initial_trials(self):
        ...         return [Create() for _ in range(self.trials)]
        ...
        ...     def validated(self, trial, step, metrics):
        ...         if self.best is None or metrics["val_loss"] < self.best:
        ...             self.best = metrics["val_loss"]
        ...         elif metrics["val_loss"] > 2 * self.best:
        ...             return [Stop(trial)]
        >>> search = Best(trials=2)
        >>> search.initial_trials()
        [Create(hparams={}, until=None), Create(hparams={}, until=None)]
        >>> search.validated(SearchTrial(0, {}), 100, {"val_loss": 0.5})
        >>> search.state_dict()
        {'trials': 2, 'best': 0.5}
    """

    @abstractmethod
    def initial_trials(self) -> Iterable[Action] | None:
        """Return the first actions, with at least one `Create`."""

    def trial_created(self, trial: SearchTrial) -> Iterable[Action] | None:
        """Handle that a trial waits for a worker, or runs."""

    def validated(self, trial: SearchTrial, step: int, metrics: Mapping[str, float]) -> Iterable[Action] | None:
        """Handle a validation.

        Args:
            trial: The trial. It may have trained on, or ended.
            step: The batches that it had trained, or the step that a program reports.
            metrics: Those of the section ``searcher``, by name. NaN is the infinity that is the worst value.
        """

    def ended(self, trial: SearchTrial) -> Iterable[Action] | None:
        """Handle that a trial has completed, or has stopped after `Stop`."""

    def ended_early(self, trial: SearchTrial, reason: str) -> Iterable[Action] | None:
        """Handle that a trial has ended otherwise.

        Args:
            trial: The trial.
            reason: ``"errored"`` after its restarts, ``"invalid"`` after `InvalidHP`, or ``"canceled"`` by the user.
        """

    def progress(self) -> float:
        """Return the share of the search that is done, from 0 to 1, for displays. Default: 0."""
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return the state: strings as keys, and values of JSON. Default: all attributes."""
        return dict(vars(self))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that `state_dict` has returned. Default: set the attributes."""
        vars(self).update(state_dict)
