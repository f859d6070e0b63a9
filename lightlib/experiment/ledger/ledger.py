"""Ledger: adds, claims and ends attempts, so that no kill loses a trial or runs one twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from lightlib.errors import LightlibError, MisconfigurationException
from lightlib.experiment.ledger.attempt import END, KEY, MORE, OWNER, Attempt, Ending, Entry
from lightlib.experiment.ledger.snapshot import Snapshot
from lightlib.experiment.ledger.storage import Patience
from lightlib.experiment.ledger.turns import NoTurns, Turns

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

_STATES: Mapping[Ending, TrialState] = {
    "completed": TrialState.COMPLETE,
    "stopped": TrialState.PRUNED,
    "paused": TrialState.PRUNED,
}


class LostAttempt(LightlibError):
    """The attempt has been ended by another worker, which took this one for dead: its results no longer count."""


class Ledger:
    """The record of an experiment in an Optuna study, which any number of workers change at the same time.

    It needs three promises of a storage, which all of Optuna's give: numbers of trials rise in the order of creation;
    one worker at most changes a trial from waiting to running; a trial that has ended is never changed. On them rest
    these rules:

    - A worker adds an attempt where the ledger shows none. If several do so at once, the lowest number holds
      (`Snapshot`).
    - The owner announces how an attempt ends, and only then ends it. A worker that finds the owner dead carries out
      the announced end; if there is none, the attempt is lost, and its trial continues.
    - The attempt that continues a trial is added before the present one ends, so no kill can lose the trial in between.

    Args:
        storage: An Optuna storage.
        name: The name of the experiment, which is that of the study. Created if it is missing.
        directions: ``"minimize"`` or ``"maximize"`` for each metric, for a new study.
        max_restarts: How often a trial may fail by itself and is tried again. Default: 5.
        patience: With a storage that does not answer. Default: ten minutes.
        turns: Of the workers that add attempts. Default: none.
        of_searcher: Whether snapshots have only the attempts to run the user's own searcher. Default: only the rest.

    Attributes:
        turns: The same.

    Raises:
        StorageUnreachable: By every method: the storage has not answered for so long.
    """

    def __init__(
        self,
        storage: BaseStorage,
        name: str,
        directions: tuple[str, ...] = ("minimize",),
        max_restarts: int = 5,
        patience: Patience | None = None,
        turns: Turns | None = None,
        *,
        of_searcher: bool = False,
    ) -> None:
        self.storage, self.name, self.max_restarts = storage, name, max_restarts
        self._patience, self._of_searcher = patience or Patience(), of_searcher
        self.turns = turns or NoTurns()
        self._ended: dict[int, Attempt] = {}  # which never change, by their identifiers
        self._ask = self._patience.call
        try:
            self.study = self._ask(
                storage.create_new_study, [StudyDirection[direction.upper()] for direction in directions], name
            )
        except DuplicatedStudyError:
            self.study = self._ask(storage.get_study_id_from_name, name)

    def snapshot(self) -> Snapshot:
        """Return the present state of the ledger."""
        trials = self._ask(self.storage.get_all_trials, self.study, False)
        attempts = (self._attempt(trial) for trial in trials if KEY in trial.system_attrs)
        return Snapshot((attempt for attempt in attempts if (attempt.trial < 0) == self._of_searcher), len(trials))

    def _attempt(self, frozen: FrozenTrial) -> Attempt:
        attempt = self._ended.get(frozen._trial_id)  # noqa: SLF001  storages know trials by it alone
        if attempt is None:
            attempt = Attempt(frozen)
            if attempt.state == "ended":
                self._ended[attempt.id] = attempt
        return attempt

    def of_searcher(self) -> Ledger:
        """Return the same ledger with the attempts to run the user's own searcher, which are those of trial -1."""
        return Ledger(
            self.storage,
            self.name,
            max_restarts=self.max_restarts,
            patience=self._patience,
            turns=self.turns,
            of_searcher=True,
        )

    def fresh(self, identifier: int) -> Attempt:
        """Return the present state of one attempt, given its identifier in the storage."""
        return Attempt(self._ask(self.storage.get_trial, identifier))

    def add(self, entry: Entry, owner: Mapping[str, Any] | None = None) -> int:
        """Add an attempt; return its identifier in the storage. It may turn out to be void.

        Args:
            entry: It.
            owner: The worker that has it from the beginning, as plain values. Default: none; it waits for one.
        """
        info = {name: value for name, value in asdict(entry).items() if name not in ("params", "distributions")}
        trial = create_trial(
            state=TrialState.WAITING if owner is None else TrialState.RUNNING,
            params=dict(entry.params),
            distributions=dict(entry.distributions),
            system_attrs={KEY: info} if owner is None else {KEY: info, OWNER: dict(owner)},
        )
        return self._ask(self.storage.create_new_trial, self.study, trial)

    def claim(self, attempt: Attempt, owner: Mapping[str, Any]) -> bool:
        """Take a waiting attempt; return whether this worker has it.

        If the storage answers late, the result may be False although the claim was made. The attempt then has no
        owner, and continues after the grace period.

        Args:
            attempt: One that holds, in a fresh snapshot.
            owner: The identity of this worker, as plain values.
        """
        try:
            if not self._ask(self.storage.set_trial_state_values, attempt.id, TrialState.RUNNING):
                return False
            self.write(attempt, OWNER, dict(owner))
        except (UpdateFinishedTrialError, LostAttempt):
            return False
        return True

    def write(self, attempt: Attempt, name: str, value: Any) -> None:
        """Write a plain value under a name, for all to read.

        Raises:
            LostAttempt: The attempt has ended.
        """
        self._owned(attempt, self.storage.set_trial_system_attr, attempt.id, name, value)

    def report(self, attempt: Attempt, step: int, value: float, *more: float) -> None:
        """Write the metric after so many units.

        Args:
            attempt: One of this worker.
            step: The units.
            value: The metric.
            more: The metrics after the first, of a search with several.

        Raises:
            LostAttempt: The attempt has ended.
        """
        if more:
            self.write(attempt, f"{MORE}:{step}", more)
        self._owned(attempt, self.storage.set_trial_intermediate_value, attempt.id, step, value)

    def note(self, name: str, value: Any) -> None:
        """Write a plain value of the experiment under a name, for all to read."""
        self._ask(self.storage.set_study_system_attr, self.study, name, value)

    def notes(self) -> dict[str, Any]:
        """Return the values of the experiment by name."""
        return dict(self._ask(self.storage.get_study_system_attrs, self.study))

    def end(
        self, attempt: Attempt, reason: Ending, value: float | Sequence[float] | None = None, again: bool = True
    ) -> None:
        """End an attempt of this worker.

        Args:
            attempt: It.
            reason: How it ends.
            value: The metric, for a completed one; a list of several.
            again: Whether a failed one may be tried again.

        Raises:
            LostAttempt: It has ended already, for another reason.
        """
        end = {"reason": reason, "value": value, "again": again}
        self.write(attempt, END, end)
        try:
            self._owned(attempt, self._carry_out, attempt, end)
        except LostAttempt:  # perhaps another worker has carried it out, or the answer to the first write was lost
            if self.fresh(attempt.id).ended_as != reason:
                raise

    def take_over(self, attempt: Attempt) -> None:
        """End an attempt of a dead owner, as the owner has announced; without an announcement it is lost."""
        now = self.fresh(attempt.id)
        if now.state == "running":
            with suppress(UpdateFinishedTrialError):  # ended by another worker, or by its owner, who lives
                self._carry_out(now, now.end or {"reason": "lost", "value": None, "again": True})

    def discard(self, attempt: Attempt) -> None:
        """End an attempt that is void."""
        with suppress(UpdateFinishedTrialError):
            self._ask(self.storage.set_trial_system_attr, attempt.id, END, {"reason": "void", "value": None})
            self._ask(self.storage.set_trial_state_values, attempt.id, TrialState.FAIL)

    def _carry_out(self, attempt: Attempt, end: Mapping[str, Any]) -> None:
        reason: Ending = end["reason"]
        if reason in ("lost", "interrupted", "failed"):
            now = self.snapshot()
            again = reason != "failed" or (end["again"] and now.failures(attempt.trial) < self.max_restarts)
            added = any(
                added_attempt.before == attempt.number and added_attempt.reason == reason
                for added_attempt in now.attempts
            )
            if again and not added:
                self.add(attempt.successor(reason))
        value = end["value"]
        values = None if reason != "completed" else value if isinstance(value, (list, tuple)) else [value]
        self._ask(self.storage.set_trial_state_values, attempt.id, _STATES.get(reason, TrialState.FAIL), values)

    def _owned(self, attempt: Attempt, act: Callable[..., object], *args: Any) -> None:
        try:
            self._ask(act, *args)
        except UpdateFinishedTrialError:
            raise LostAttempt(
                f"Attempt {attempt.attempt} of trial {attempt.trial} was ended by another worker.",
                expected="a worker that reports within the grace period.",
                fix="nothing: another attempt continues the trial from its newest checkpoint.",
            ) from None


def require_new(ledger: Ledger, name: str) -> None:
    """Raise if the study has trials of another program.

    Raises:
        MisconfigurationException: The study has trials that lightlib did not add.
    """
    foreign = [
        trial.number
        for trial in ledger.storage.get_all_trials(ledger.study, deepcopy=False)
        if KEY not in trial.system_attrs
    ]
    if foreign:
        raise MisconfigurationException(
            f"The study {name!r} has {len(foreign)} trials that lightlib did not add.",
            expected="a name that only lightlib uses in this storage.",
            fix="another `name:` in the experiment file.",
        )
