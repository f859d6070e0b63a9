"""A clock that ranks share: compared rarely, and at once when a deadline comes near."""

from __future__ import annotations

import copy
import time
from types import SimpleNamespace
from typing import Any

import pytest

from lightlib.callbacks.shared_clock import SharedClock


class Pair:
    """Two processes in turns: rank zero broadcasts and the other receives; each has its own clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.lag, self.sent, self.exchanges = 100.0, 0.0, None, 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now + self.lag)
        self.clocks = [SharedClock(), SharedClock()]
        self.trainers = [self._trainer(self._send), self._trainer(lambda own: self.sent)]

    def _trainer(self, broadcast: Any) -> Any:
        return SimpleNamespace(world_size=2, strategy=SimpleNamespace(broadcast=broadcast))

    def _send(self, value: Any) -> Any:
        self.sent, self.exchanges = value, self.exchanges + 1
        return value

    def ask(self, batch: int, limit: float) -> bool:
        found = []
        for rank, lag in ((0, 0.0), (1, 5.0)):
            self.lag = lag
            found.append(self.clocks[rank].over(self.trainers[rank], batch, limit))
        self.lag = 0.0
        assert found[0] == found[1]
        return found[0]

    def start(self, batch: int) -> None:
        for clock in self.clocks:
            clock.start(batch)


@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.3, 4.0])
def test_all_decide_alike_and_rank_zeros_clock_counts(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    pair = Pair(monkeypatch)
    pair.start(0)
    for batch in range(1, 100_000):
        pair.now += seconds
        if pair.ask(batch, limit=10.0):
            break
    passed = pair.now - 100.0
    assert 10.0 - 1e-6 <= passed <= 10.0 + max(2 * seconds, 0.1)
    assert pair.exchanges <= 60


def test_it_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch)
    pair.start(0)
    found = []
    for batch in range(1, 40):
        pair.now += 1
        if pair.ask(batch, limit=10.0):
            found.append(batch)
            pair.start(batch)
    assert found == [10, 20, 30]


def test_one_process_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock, alone = SharedClock(), SimpleNamespace(world_size=1)
    now[0] = 9.9
    assert not clock.over(alone, 1, 10.0)
    now[0] = 10.0
    assert clock.over(alone, 1, 10.0)
    assert clock.passed == 10.0


def test_a_copy_is_equal_until_either_is_used() -> None:
    clock = SharedClock()
    other = copy.deepcopy(clock)
    assert clock == other
    other.start(3)
    assert clock != other
    assert clock != "a clock"
