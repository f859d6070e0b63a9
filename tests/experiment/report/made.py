"""Experiments for tests of the report, of which each attempt, its times and its reports are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from optuna.trial import TrialState, create_trial

from lightlib.experiment.file import ExperimentConfig, read
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.report.facts import Facts, facts_of
from lightlib.experiment.space import Space
from lightlib.experiment.work.folder import ExperimentFolder
from tests.experiment.stores import memory

NOON = datetime(2026, 1, 2, 12)  # noqa: DTZ001  as Optuna has times
_STATES = {"completed": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "paused": TrialState.PRUNED}
RANDOM = {"name": "random", "metric": "val_loss", "max_trials": 300}


class Made:
    """An experiment in a ledger in memory.

    Args:
        path: Its folder, which need not exist.
        hyperparameters: As in a file.
        searcher: As in a file.
        more: The rest of the file.
    """

    def __init__(
        self, path, hyperparameters: Mapping[str, Any], searcher: Mapping[str, Any] = RANDOM, **more: Any
    ) -> None:
        rest = {"entrypoint": "python3 train.py", "reproducibility": {"experiment_seed": 7}, **more}
        file = {"name": "search", "hyperparameters": hyperparameters, "searcher": dict(searcher), **rest}
        self.config: ExperimentConfig = read(file)
        self.folder = ExperimentFolder(path)
        self.space = Space(self.config.hyperparameters)
        directions = tuple("minimize" if smaller else "maximize" for smaller in self.config.searcher.directions)
        self.ledger = Ledger(memory(), "search", directions)
        self._numbers: dict[tuple[int, int], int] = {}

    @property
    def facts(self) -> Facts:
        return facts_of(self.folder, self.config, self.ledger)

    def add(
        self,
        trial: int,
        outcome: str,
        numbers: Mapping[str, float],
        reports: Sequence[tuple[int, float]] = (),
        *,
        attempt: int = 0,
        reason: str = "new",
        seconds: tuple[float, float] = (0, 60),
        worker: str = "one",
        more: Mapping[str, Any] = {},
        attributes: Mapping[str, Any] = {},
        second: Sequence[float] = (),
    ) -> None:
        """Add an attempt.

        Args:
            trial: The number of the trial.
            outcome: How it has ended, ``"running"`` or ``"waiting"``.
            numbers: Those of Optuna, by dotted key.
            reports: Step and metric of each, of several metrics the first.
            attempt: The number within the trial.
            reason: Why it was added.
            seconds: When it began and ended, after noon.
            worker: Its owner.
            more: The values of the searcher.
            attributes: More of them.
            second: The values of the second metric, one for each report.
        """
        values = [value for _, value in reports]
        best = (min if self.config.searcher.directions[0] else max)(values, default=None)
        further = {f"metrics:{step}": [value] for (step, _), value in zip(reports, second, strict=False)}
        kept = {"value": best} if not second else {"values": [values[-1], second[-1]]}
        state = TrialState[outcome.upper()] if outcome in ("running", "waiting") else _STATES.get(outcome)
        before = self._numbers.get((trial, attempt - 1))
        info = {"trial": trial, "attempt": attempt, "reason": reason, "before": before, "more": dict(more)}
        distributions = self.space.distributions()
        frozen = create_trial(
            state=TrialState.FAIL if state is None else state,
            **(kept if outcome == "completed" else {}),
            params=dict(numbers),
            distributions={key: distributions[key] for key in numbers},
            intermediate_values=dict(reports),
            system_attrs={
                "lightlib": info,
                "owner": {"name": worker},
                "end": {"reason": outcome},
                **attributes,
                **further,
            },
        )
        frozen.datetime_start = None if outcome == "waiting" else NOON + timedelta(seconds=seconds[0])
        ended = outcome not in ("running", "waiting")
        frozen.datetime_complete = NOON + timedelta(seconds=seconds[1]) if ended else None
        self.ledger.storage.create_new_trial(self.ledger.study, frozen)
        self._numbers[trial, attempt] = len(self._numbers)
