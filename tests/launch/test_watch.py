"""Ranks agree on where to leave, without a collective: threads with one store, at random speeds."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import distributed

from lightlib.launch.agreement import next_after
from lightlib.launch.watch import END, OtherRankError, Watch
from tests.launch.ranks import ranks as processes

POLL = 0.01


class Rank(threading.Thread):
    """A main thread with a loop as core has it: batches with collectives, and a look at the flag after each."""

    def __init__(
        self, watch: Watch, meet: threading.Barrier, batches: int, pause: Callable[[], float], hook: Callable[..., None]
    ) -> None:
        super().__init__(daemon=True)
        self.watch, self.meet, self.batches, self.pause, self.hook = watch, meet, batches, pause, hook
        self.batch, self.looked = 0, 0
        self.flags: set[str] = set()
        self.left: tuple[int, ...] | None = None
        self.error: BaseException | None = None

    def position(self) -> tuple[int, ...]:
        return (0, self.batch)

    def run(self) -> None:
        try:
            self.watch.start(self.position, self.flags.add, lambda: f"batch {self.batch}")
            self.loop()
            self.watch.stop()
        except BaseException as error:  # noqa: BLE001  it is looked at in the test
            self.error = error

    def loop(self) -> None:
        for _ in range(self.batches):
            time.sleep(self.pause())
            self.meet.wait(20)  # the collective of a batch: nobody is further than the others by more than one
            self.batch += 1
            self.hook(self)
            for kind in ("interrupt", "terminate", "stop"):
                if kind in self.flags and self.position() >= self.watch.agree(kind, self.position()):
                    self.left = self.position()
                    return


@contextmanager
def watches(size: int, **options: Any) -> Iterator[list[Watch]]:
    store = distributed.HashStore()
    made = [Watch(store, rank, size, 20, POLL, name="test", **options) for rank in range(size)]
    try:
        yield made
    finally:
        for watch in made:
            watch.close()


def together(
    all_watches: list[Watch], batches: int, pause: Callable[[], float], hook: Callable[..., None]
) -> list[Rank]:
    meet = threading.Barrier(len(all_watches))
    ranks = [Rank(watch, meet, batches, pause, hook) for watch in all_watches]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(30)
    assert not any(rank.is_alive() for rank in ranks), "a rank hangs"
    for rank in ranks:
        if rank.error is not None:
            raise rank.error
    return ranks


@pytest.mark.parametrize("seed", range(30))
def test_all_leave_at_the_same_boundary_whoever_asks(seed, monkeypatch):
    monkeypatch.setattr("lightlib.launch.watch.PATIENCE", 0.05)
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5])
    speed = draw.choice([0.0, 0.002, 0.01])
    askers = {
        rank: (draw.randint(1, 30), draw.choice(["stop", "terminate", "interrupt"]))
        for rank in draw.sample(range(size), draw.randint(1, size))
    }
    directly = draw.random() < 0.5

    def hook(rank: Rank) -> None:
        if draw.random() < 0.1:
            time.sleep(draw.random() * 0.02)
        when, kind = askers.get(rank.watch.rank, (0, ""))
        if rank.batch == when:
            rank.watch.request(kind)
            if directly:
                rank.flags.add(kind)

    with watches(size) as made:
        ranks = together(made, 400, lambda: draw.random() * speed, hook)
    left = {rank.left for rank in ranks}
    assert len(left) == 1, left
    where = left.pop()
    assert where is None or where >= (0, min(when for when, _ in askers.values()))
    if speed:
        assert where is not None


@pytest.mark.parametrize("seed", range(10))
def test_a_wish_of_all_at_one_boundary_is_granted_there(seed):
    draw = random.Random(seed)
    pauses = [draw.random() * 0.05 for _ in range(4)]

    def hook(rank: Rank) -> None:
        if rank.batch == 7:
            rank.watch.request("stop")
            time.sleep(pauses[rank.watch.rank])  # others ask later, or have asked before
            rank.flags.add("stop")

    with watches(4) as made:
        ranks = together(made, 50, lambda: 0.0, hook)
    assert {rank.left for rank in ranks} == {(0, 7)}


@pytest.mark.parametrize("seed", range(5))
def test_a_position_that_is_written_before_the_look_makes_that_exact_at_any_speed(seed, monkeypatch):
    draw = random.Random(seed)
    monkeypatch.setattr(Rank, "position", lambda self: (0, self.looked))

    def loop(self: Rank) -> None:
        for _ in range(self.batches):
            self.meet.wait(20)
            self.batch += 1
            if self.batch == 5:
                self.watch.request("stop")
                time.sleep(1.5 * (self.watch.rank == 1) * draw.random())  # longer than any patience
                self.flags.add("stop")
            self.looked = self.batch
            if "stop" in self.flags and self.position() >= self.watch.agree("stop", self.position()):
                self.left = self.position()
                return

    monkeypatch.setattr(Rank, "loop", loop)
    with watches(3) as made:
        ranks = together(made, 50, lambda: 0.0, lambda rank: None)
    assert {rank.left for rank in ranks} == {(0, 5)}


def test_leaving_only_where_the_plan_allows_it(monkeypatch):
    """Asking only at the boundaries at which one may leave, the same on all ranks, is enough."""
    monkeypatch.setattr("lightlib.launch.watch.PATIENCE", 0.05)

    def loop(self: Rank) -> None:
        for _ in range(self.batches):
            time.sleep(self.pause())
            self.meet.wait(20)
            self.batch += 1
            self.hook(self)
            if (
                self.batch % 4 == 0
                and "stop" in self.flags
                and self.position() >= self.watch.agree("stop", self.position())
            ):
                self.left = self.position()
                return

    monkeypatch.setattr(Rank, "loop", loop)
    for seed in range(10):
        draw = random.Random(seed)
        asked = draw.randint(1, 20)

        def hook(rank: Rank, asked: int = asked) -> None:
            if rank.batch == asked and rank.watch.rank == 1:
                rank.watch.request("stop")

        with watches(3) as made:
            ranks = together(made, 400, lambda draw=draw: 0.004 * draw.random(), hook)
        left = {rank.left for rank in ranks}
        assert len(left) == 1
        where = left.pop()
        assert where is not None
        assert where[1] % 4 == 0


def test_a_refused_wish_may_be_followed_by_a_new_one(monkeypatch):
    def loop(self: Rank) -> None:
        for _ in range(self.batches):
            time.sleep(self.pause())
            self.meet.wait(20)
            self.batch += 1
            self.hook(self)
            if "stop" in self.flags and self.position() >= self.watch.agree("stop", self.position()):
                if self.batch < 100:
                    self.flags.discard("stop")
                    self.watch.refuse("stop")
                else:
                    self.left = self.position()
                    return

    monkeypatch.setattr(Rank, "loop", loop)

    def hook(rank: Rank) -> None:
        if (rank.batch, rank.watch.rank) in {(3, 0), (60, 1), (120, 2)}:
            rank.watch.request("stop")

    draw = random.Random(1)
    with watches(3) as made:
        ranks = together(made, 400, lambda: 0.006 * draw.random(), hook)
    assert len({rank.left for rank in ranks}) == 1
    assert ranks[0].left is not None
    assert ranks[0].left >= (0, 120)


def test_a_later_run_has_its_own_wishes():
    def hook(rank: Rank) -> None:
        if rank.batch == 2 and rank.watch.rank == 0:
            rank.watch.request("stop")

    with watches(2) as made:
        first = together(made, 200, lambda: 0.005, hook)
        assert first[0].left == first[1].left is not None
        second = together(made, 20, lambda: 0.001, lambda rank: None)
        assert [rank.left for rank in second] == [None, None]
        third = together(made, 200, lambda: 0.005, hook)
        assert third[0].left == third[1].left is not None


def test_who_asks_when_a_rank_has_ended_the_run_goes_on_to_its_own_end():
    with watches(2) as made:
        for watch in made:
            watch.start(lambda: (3,), lambda kind: None, str)
        made[1].stop()
        assert made[0].agree("terminate", (3,)) == END
        made[0].start(lambda: (0,), lambda kind: None, str)
        made[0].stop()


def test_rank_0_may_be_the_first_to_end():
    with watches(2) as made:
        for watch in made:
            watch.start(lambda: (3,), lambda kind: None, str)
        made[0].stop()
        assert made[1].agree("stop", (3,)) == END


def test_a_failure_ends_the_wait_for_an_agreement():
    with watches(2) as made:
        for watch in made:
            watch.start(lambda: (3,), lambda kind: None, str)
        made[1]._position = _no_position  # it never answers
        threading.Timer(0.3, lambda: made[1].fail(ValueError("boom"))).start()
        with pytest.raises(OtherRankError, match=r"Rank 1 failed first:\n(.|\n)*ValueError: boom"):
            made[0].agree("stop", (3,))
        made[0].fail(OtherRankError(made[0].failure))
        assert made[0].failure == made[1].failure


def _no_position() -> Any:
    raise LookupError


def test_a_rank_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr("lightlib.launch.watch.ANSWER", 0.5)
    with watches(3) as made:
        for watch in made:
            watch.start(lambda: (3,), lambda kind: None, str)
        made[1]._position = _no_position
        with pytest.raises(OtherRankError, match=r"Rank 1 did not answer for 0.5 s when a stop was asked for\."):
            made[2].agree("terminate", (3,))
        for watch in made:
            watch.fail(RuntimeError())


def test_a_rank_that_has_not_begun_the_run_is_waited_for(monkeypatch):
    monkeypatch.setattr("lightlib.launch.watch.ANSWER", 0.3)
    with watches(2) as made:
        made[0].start(lambda: (0,), lambda kind: None, str)
        late = threading.Timer(1.0, lambda: made[1].start(lambda: (0,), lambda kind: None, str))
        late.start()
        assert made[0].agree("terminate", (1,)) == (1,)
        late.join()


def test_the_next_boundary():
    assert (4, 7) < next_after((4, 7)) <= (4, 8)
    assert next_after((4, 7)) <= (5, 0)


def test_wishes_outside_of_a_run_are_nobodys():
    with watches(1) as made:
        made[0].request("stop")
        made[0].refuse("stop")
        made[0].stop()
        assert made[0].look() is None


def leave_often(rank: int, watch: Watch) -> None:
    """Many runs; in each one rank or several get a signal at random, while the others may be in a collective."""
    asked: list[str] = []
    signal.signal(signal.SIGTERM, lambda *_: (watch.request("terminate"), asked.append("terminate")))
    for seed in range(25):
        draw, own = random.Random(seed), random.Random(1000 * seed + rank)
        asked.clear()
        batch = [0]
        at = {draw.randrange(3): draw.random() * 0.3 for _ in range(draw.randint(1, 3))}
        begun = time.monotonic()
        watch.start(lambda batch=batch: (seed, batch[0]), asked.append, lambda: f"batch {batch[0]}")  # noqa: B023
        while True:
            time.sleep(own.random() * draw.choice([0.0, 0.01, 0.03]))
            distributed.all_reduce(torch.ones(1))
            batch[0] += 1
            if rank in at and time.monotonic() - begun > at[rank]:
                del at[rank]
                os.kill(os.getpid(), signal.SIGTERM)
            if asked and (seed, batch[0]) >= watch.agree("terminate", (seed, batch[0])):
                break
        watch.stop()
        left = [None] * 3
        distributed.all_gather_object(left, batch[0])
        assert len(set(left)) == 1, left


def test_processes_in_collectives_leave_together():
    assert [(end.code, end.text) for end in processes(3, leave_often, limit=100)] == [(0, "")] * 3
