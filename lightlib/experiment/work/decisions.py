"""Decisions: the answers of a worker to trials that have reached a rung, and how they end."""

from __future__ import annotations

from typing import Any

from lightlib.experiment.ledger.attempt import Ending
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.searchers.custom import Custom
from lightlib.experiment.searchers.halving import Action, Halving
from lightlib.experiment.searchers.plain import Plain
from lightlib.experiment.searchers.scores import score
from lightlib.experiment.work.trial import TrialHere

_ENDS: dict[Action, Ending] = {"complete": "completed", "stop": "stopped", "pause": "paused"}


class Decisions:
    """The decisions of a worker at the rungs of its trials. A search without rungs has none.

    A trial that dies between a decision and its checkpoint trains to the same rung again, and gets the same decision.

    Args:
        source: Of the trials.
        ledger: Of the experiment.
        smaller_is_better: Whether less of the metric is better.
    """

    def __init__(self, source: Plain | Halving | Custom, ledger: Ledger, smaller_is_better: bool) -> None:
        self._halving = source if isinstance(source, Halving) else None
        self._ledger, self._smaller = ledger, smaller_is_better

    def answer(self, one: TrialHere, message: dict[str, Any]) -> None:
        """Answer a trial that has reached a rung.

        Args:
            one: The trial.
            message: With the number of the rung, and the metric there.

        Raises:
            LostAttempt: The attempt has ended.
        """
        assert self._halving is not None, "its trials have no rungs"
        rung = message["rung"]
        action = self._halving.pass_rungs(self._ledger, one.attempt, rung, score(message["value"], self._smaller))
        if action == "pause":
            one.pause()
        else:
            one.answer(rung, action)

    def ended(self, one: TrialHere, reason: Ending, best: float | None) -> Ending:
        """Return how a trial ends that has completed or was interrupted.

        The best metric of one that has ended its training by itself stands in its rung.

        Raises:
            LostAttempt: The attempt has ended.
        """
        if self._halving is None or (reason == "interrupted" and not one.decided):
            return reason
        action = self._halving.course(self._ledger.snapshot(), one.attempt.trial).action
        if action is None and reason == "completed" and best is not None:
            self._halving.complete(self._ledger, one.attempt, score(best, self._smaller))
        return reason if action is None else _ENDS[action]
