"""Attempt: one run of a trial, from its start to its end or interruption; one trial of Optuna."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

KEY, END, OWNER, MORE = "lightlib", "end", "owner", "metrics"
# why an attempt ended, or will: its owner writes it before the state of Optuna's trial changes
Ending = Literal["completed", "stopped", "paused", "failed", "lost", "interrupted", "invalid", "canceled", "void"]
# why an attempt was added: the first one, or how the one before must have ended
Reason = Literal["new", "lost", "failed", "interrupted", "paused", "retried"]
_STATES: Mapping[str, Literal["waiting", "running"]] = {"WAITING": "waiting", "RUNNING": "running"}
CONTINUES = frozenset({"lost", "failed", "interrupted", "paused"})


@dataclass(frozen=True)
class Entry:
    """An attempt that is to be added.

    Attributes:
        trial: The number of the trial, from 0.
        attempt: The number of the attempt within the trial, from 0.
        reason: Why it is added.
        before: Optuna's number of the attempt that it continues.
        more: The values that a searcher keeps with it, such as the bracket.
        params: The values of Optuna's distributions.
        distributions: By name.
    """

    trial: int
    attempt: int = 0
    reason: Reason = "new"
    before: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    distributions: Mapping[str, BaseDistribution] = field(default_factory=dict)


class Attempt:
    """One attempt in the ledger, at one moment.

    Attributes:
        number: Optuna's number, from 0: attempts are numbered in the order in which they were added.
        id: Optuna's identifier in the storage.
        trial: The number of the trial.
        attempt: The number of the attempt within the trial.
        reason: Why it was added.
        before: Optuna's number of the attempt that it continues; None for the first.
        state: What it does.
        ended_as: How it ended; None while it has not. A failed one without a reason is lost.
    """

    __slots__ = ("_frozen", "attempt", "before", "ended_as", "id", "number", "reason", "state", "trial")

    def __init__(self, frozen: FrozenTrial) -> None:
        info = frozen.system_attrs[KEY]
        self._frozen = frozen
        self.number, self.id = frozen.number, frozen._trial_id  # noqa: SLF001  storages know trials by it alone
        self.trial: int = info["trial"]
        self.attempt: int = info["attempt"]
        self.reason: Reason = info["reason"]
        self.before: int | None = info["before"]
        name = frozen.state.name
        self.state: Literal["waiting", "running", "ended"] = _STATES.get(name, "ended")
        self.ended_as: Ending | None = _ending(name, self.end) if self.state == "ended" else None

    @property
    def end(self) -> Mapping[str, Any] | None:
        """The end that its owner has announced, which may still be to come: its ``reason`` and ``value``."""
        return self.attribute(END)  # type: ignore[no-any-return]

    @property
    def value(self) -> float | None:
        """The value of a completed attempt; of several metrics, that of the first."""
        return self.values[0] if self.values else None

    @property
    def values(self) -> Sequence[float]:
        """The value of each metric of a completed attempt; empty for one that has not completed."""
        return self._frozen.values or ()

    @property
    def reports(self) -> Mapping[int, float]:
        """The reported value by step; of several metrics, that of the first."""
        return self._frozen.intermediate_values

    @property
    def began(self) -> datetime | None:
        """When it was claimed, by the clock of its worker; None before."""
        return self._frozen.datetime_start

    @property
    def finished(self) -> datetime | None:
        """When it ended, by the clock of the worker that ended it; None before."""
        return self._frozen.datetime_complete

    @property
    def metrics(self) -> Mapping[int, tuple[float, ...]]:
        """The reported values of all metrics by step."""
        more = {step: self.attribute(f"{MORE}:{step}") or () for step in self.reports}
        return {step: (value, *more[step]) for step, value in self.reports.items()}

    @property
    def distributions(self) -> Mapping[str, BaseDistribution]:
        """Optuna's distributions of `params`."""
        return self._frozen.distributions

    @property
    def params(self) -> Mapping[str, Any]:
        """The values of Optuna's distributions."""
        return self._frozen.params

    @property
    def more(self) -> Mapping[str, Any]:
        """The values that the searcher keeps with it."""
        return self._frozen.system_attrs[KEY]["more"]  # type: ignore[no-any-return]

    def attribute(self, name: str) -> Any:
        """Return the value that was written under a name; None if there is none."""
        return self._frozen.system_attrs.get(name)

    def successor(self, reason: Reason, **more: Any) -> Entry:
        """Return the entry of the attempt that continues this one.

        Args:
            reason: How this one ended.
            more: The values that the searcher changes.
        """
        kept = {**self.more, **more}
        return Entry(
            self.trial, self.attempt + 1, reason, self.number, kept, self._frozen.params, self._frozen.distributions
        )

    def __repr__(self) -> str:
        return f"Attempt({self.number}, trial {self.trial}.{self.attempt}, {self.ended_as or self.state})"


def _ending(name: str, end: Mapping[str, Any] | None) -> Ending:
    """Return how an attempt has ended, by the name of Optuna's state and the announced end."""
    if name == "COMPLETE":
        return "completed"
    written: Ending = (end or {}).get("reason", "lost")
    if name == "PRUNED":
        return "paused" if written == "paused" else "stopped"
    return written if written in ("failed", "interrupted", "invalid", "canceled", "void") else "lost"
