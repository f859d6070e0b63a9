"""Orders of users for an experiment that runs, which all its workers follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lightlib.experiment.ledger.ledger import Ledger

Order = Literal["run", "pause", "cancel", "kill"]
_NAME = "order"
_EARLIEST: tuple[Order, ...] = ("run", "pause", "cancel", "kill")


@dataclass(frozen=True)
class Orders:
    """The orders of an experiment at one moment.

    Attributes:
        experiment: ``"run"``; ``"pause"``: trials save a checkpoint and wait; ``"cancel"``: they save one and end;
            ``"kill"``: they end at once.
        text: Why it was canceled; empty unless a worker did it.
        trials: The trials that were canceled or killed by number.
    """

    experiment: Order = "run"
    text: str = ""
    trials: Mapping[int, Order] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether the experiment has been canceled or killed."""
        return self.experiment in ("cancel", "kill")

    def of(self, trial: int) -> Order:
        """Return the order that holds for a trial: its own or that of the experiment, the one that ends it earlier."""
        return max(self.trials.get(trial, "run"), self.experiment, key=_EARLIEST.index)


def orders_of(ledger: Ledger) -> Orders:
    """Return the orders that a ledger has."""
    notes = ledger.notes()
    trials = {
        int(name.partition(":")[2]): value["order"] for name, value in notes.items() if name.startswith(f"{_NAME}:")
    }
    of_all = notes.get(_NAME, {})
    return Orders(of_all.get("order", "run"), of_all.get("text", ""), trials)


def give_order(ledger: Ledger, order: Order, trial: int | None = None, text: str = "") -> None:
    """Write an order.

    Args:
        ledger: Of the experiment.
        order: It.
        trial: The trial that is to end. Default: the order is for the experiment.
        text: Why, for a person.
    """
    ledger.note(_NAME if trial is None else f"{_NAME}:{trial}", {"order": order, "text": text})
