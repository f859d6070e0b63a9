"""Ranks agree on where to leave, without a collective: threads with one store, at random speeds."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import distributed

from lightlib.launch.watch.stop_point import next_after
from lightlib.launch.watch.timing import Timing
from lightlib.launch.watch.watch import END, OtherRankError, Watch
from tests.launch.watched_ranks import HANGS_AFTER, PATIENT, End, watched_ranks

QUICK = replace(PATIENT, poll=0.005, busy_poll=0.002, arrival=0.02)
ALL_ARRIVE = replace(QUICK, arrival=HANGS_AFTER)


class Rank(threading.Thread):
    """A main thread with a loop like core's: batches with collectives, and a flag checked after each."""

    def __init__(
        self,
        watch: Watch,
        meet: threading.Barrier,
        batches: int | None,
        pause: Callable[[], float],
        hook: Callable[..., None],
    ) -> None:
        super().__init__(daemon=True)
        self.watch, self.meet, self.batches, self.pause, self.hook = watch, meet, batches, pause, hook
        self.batch, self.looked = 0, 0
        self.flags: set[str] = set()
        self.left: tuple[int, ...] | None = None
        self.error: BaseException | None = None

    def position(self) -> tuple[int, ...]:
        return (0, self.batch)

    def raise_flag(self, kind: str) -> None:
        time.sleep(self.pause())
        self.flags.add(kind)

    def run(self) -> None:
        try:
            self.watch.start(self.position, self.raise_flag, lambda: f"batch {self.batch}")
            self.loop()
            self.watch.stop()
        except BaseException as error:  # noqa: BLE001  it is looked at in the test
            self.error = error
            self.meet.abort()

    def loop(self) -> None:
        while self.next_batch():
            for kind in ("interrupt", "terminate", "stop"):
                if kind in self.flags and self.position() >= self.watch.agree(kind, self.position()):
                    self.left = self.position()
                    return

    def next_batch(self) -> bool:
        if self.batch == self.batches:
            return False
        time.sleep(self.pause())
        self.meet.wait(HANGS_AFTER)  # the collective of a batch: no rank is ahead of another by more than one
        self.batch += 1
        self.hook(self)
        return True


@contextmanager
def watches(size: int, timing: Timing = QUICK) -> Iterator[list[Watch]]:
    store = distributed.HashStore()
    made = [Watch(store, rank, size, HANGS_AFTER, name="test", timing=timing) for rank in range(size)]
    try:
        yield made
    finally:
        for watch in made:
            watch.close()


def together(
    all_watches: list[Watch], batches: int | None, pause: Callable[[], float], hook: Callable[..., None]
) -> list[Rank]:
    meet = threading.Barrier(len(all_watches))
    ranks = [Rank(watch, meet, batches, pause, hook) for watch in all_watches]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(HANGS_AFTER)
    assert not any(rank.is_alive() for rank in ranks), "a rank hangs"
    errors = [rank.error for rank in ranks if rank.error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return ranks


@pytest.mark.parametrize("seed", range(30))
def test_all_leave_at_the_same_boundary_whoever_asks(seed):
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5])
    speed = draw.choice([0.0, 0.001, 0.005])
    askers = {
        rank: (draw.randint(1, 30), draw.choice(["stop", "terminate", "interrupt"]))
        for rank in draw.sample(range(size), draw.randint(1, size))
    }
    directly = draw.random() < 0.5

    def hook(rank: Rank) -> None:
        if draw.random() < 0.1:
            time.sleep(draw.random() * 0.01)
        when, kind = askers.get(rank.watch.rank, (0, ""))
        if rank.batch == when:
            rank.watch.request(kind)
            if directly:
                rank.flags.add(kind)

    with watches(size) as made:
        ranks = together(made, None if speed else 100, lambda: draw.random() * speed, hook)
    left = {rank.left for rank in ranks}
    assert len(left) == 1, left
    where = left.pop()
    assert where is None or where >= (0, min(when for when, _ in askers.values()))
    if speed:
        assert where is not None


@pytest.mark.parametrize("seed", range(10))
def test_a_wish_of_all_at_one_boundary_is_granted_there(seed):
    draw = random.Random(seed)
    pauses = [draw.random() * 0.02 for _ in range(4)]

    def hook(rank: Rank) -> None:
        if rank.batch == 7:
            rank.watch.request("stop")
            time.sleep(pauses[rank.watch.rank])  # other ranks request it later, or already have
            rank.flags.add("stop")

    with watches(4, ALL_ARRIVE) as made:
        ranks = together(made, 50, lambda: 0.0, hook)
    assert {rank.left for rank in ranks} == {(0, 7)}


@pytest.mark.parametrize("slow", range(3))
def test_a_position_that_is_written_before_the_look_makes_that_exact_at_any_speed(slow, monkeypatch):
    monkeypatch.setattr(Rank, "position", lambda self: (0, self.looked))

    def loop(self: Rank) -> None:
        while self.next_batch():
            if self.batch == 5:
                self.watch.request("stop")
                if self.watch.rank == slow:
                    assert self.watch._stops["stop"].decided.wait(HANGS_AFTER)
                self.flags.add("stop")
            self.looked = self.batch
            if "stop" in self.flags and self.position() >= self.watch.agree("stop", self.position()):
                self.left = self.position()
                return

    monkeypatch.setattr(Rank, "loop", loop)
    with watches(3, ALL_ARRIVE) as made:
        ranks = together(made, 50, lambda: 0.0, lambda rank: None)
    assert {rank.left for rank in ranks} == {(0, 5)}


@pytest.mark.parametrize("seed", range(10))
def test_leaving_only_where_the_plan_allows_it(seed, monkeypatch):
    """Asking only at the boundaries at which one may leave, the same on all ranks, is enough."""

    def loop(self: Rank) -> None:
        while self.next_batch():
            allowed = self.batch % 4 == 0 and "stop" in self.flags
            if allowed and self.position() >= self.watch.agree("stop", self.position()):
                self.left = self.position()
                return

    monkeypatch.setattr(Rank, "loop", loop)
    draw = random.Random(seed)
    asked = draw.randint(1, 20)

    def hook(rank: Rank) -> None:
        if rank.batch == asked and rank.watch.rank == 1:
            rank.watch.request("stop")

    with watches(3) as made:
        ranks = together(made, None, lambda: 0.004 * draw.random(), hook)
    left = {rank.left for rank in ranks}
    assert len(left) == 1
    where = left.pop()
    assert where is not None
    assert where[1] >= asked
    assert where[1] % 4 == 0


def test_a_refused_wish_may_be_followed_by_a_new_one(monkeypatch):
    """The third request is granted; each rank makes one once it has refused the rank before it."""
    refused: list[list[int]] = [[], [], []]

    def loop(self: Rank) -> None:
        rank = self.watch.rank
        while self.next_batch():
            if self.batch == 3 and rank == 0:
                self.watch.request("stop")
            if "stop" in self.flags and self.position() >= self.watch.agree("stop", self.position()):
                if len(refused[rank]) == 2:
                    self.left = self.position()
                    return
                self.flags.discard("stop")
                self.watch.refuse("stop")
                refused[rank].append(self.batch)
                if len(refused[rank]) == rank:
                    self.watch.request("stop")

    monkeypatch.setattr(Rank, "loop", loop)
    draw = random.Random(1)
    with watches(3) as made:
        ranks = together(made, None, lambda: 0.004 * draw.random(), lambda rank: None)
    assert len({rank.left for rank in ranks}) == 1
    assert refused[0] == refused[1] == refused[2]
    assert ranks[0].left > (0, refused[0][1]) > (0, refused[0][0]) >= (0, 3)


def test_a_later_run_has_its_own_wishes():
    def hook(rank: Rank) -> None:
        if rank.batch == 2 and rank.watch.rank == 0:
            rank.watch.request("stop")

    with watches(2) as made:
        first = together(made, None, lambda: 0.002, hook)
        assert first[0].left == first[1].left is not None
        second = together(made, 20, lambda: 0.001, lambda rank: None)
        assert [rank.left for rank in second] == [None, None]
        third = together(made, None, lambda: 0.002, hook)
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
        made[0].start(lambda: (3,), lambda kind: None, str)
        made[1].start(_no_position, lambda kind: None, str)  # it never answers

        def fail_when_asked() -> None:
            while made[0]._stops["stop"].requested_at is None:
                time.sleep(0.002)
            made[1].fail(ValueError("boom"))

        failing = threading.Thread(target=fail_when_asked)
        failing.start()
        with pytest.raises(OtherRankError, match=r"Rank 1 failed first:\n(.|\n)*ValueError: boom"):
            made[0].agree("stop", (3,))
        failing.join()
        made[0].fail(OtherRankError(made[0].failure))
        assert made[0].failure == made[1].failure


def _no_position() -> Any:
    raise LookupError


def test_a_rank_that_does_not_answer_is_named():
    """Rank 2 asks; it looks for the answers once rank 0 has given its own."""
    with watches(3) as made:
        made[2].timing = replace(QUICK, answer=0.05)

        def wait_for_rank_0(kind: str) -> None:
            while made[0]._stops[kind]._bound is None:
                time.sleep(0.002)

        for watch in made:
            position = _no_position if watch.rank == 1 else lambda: (3,)
            watch.start(position, wait_for_rank_0 if watch.rank == 2 else lambda kind: None, str)
        with pytest.raises(OtherRankError, match=r"Rank 1 did not answer a stop request for 0.05 s\."):
            made[2].agree("terminate", (3,))
        for watch in made:
            watch.fail(RuntimeError())


def test_a_rank_that_has_not_begun_the_run_is_waited_for(monkeypatch):
    looked, answered = threading.Event(), threading.Event()
    with watches(2) as made:
        made[0].timing = replace(QUICK, answer=0.05)
        is_here = made[0]._is_here

        def is_here_as_of_now(rank: int) -> bool:
            found = is_here(rank)
            looked.set()
            answered.wait(HANGS_AFTER)
            return found

        def begin_late() -> None:
            looked.wait(HANGS_AFTER)
            made[1].start(lambda: (0,), lambda kind: None, str)
            while made[1]._stops["terminate"]._bound is None:
                time.sleep(0.002)
            answered.set()

        monkeypatch.setattr(made[0], "_is_here", is_here_as_of_now)
        made[0].start(lambda: (0,), lambda kind: None, str)
        late = threading.Thread(target=begin_late)
        late.start()
        assert made[0].agree("terminate", (1,)) == (1,)
        assert looked.is_set()
        assert made[0].failure is None
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
    """Many runs; in each, random ranks get a signal while the rest may be in a collective."""
    asked: list[str] = []
    signal.signal(signal.SIGTERM, lambda *_: (watch.request("terminate"), asked.append("terminate")))
    for seed in range(25):
        draw, own = random.Random(seed), random.Random(1000 * seed + rank)
        asked.clear()
        batch = [0]
        at = {draw.randrange(3): draw.randint(1, 15) for _ in range(draw.randint(1, 3))}
        watch.start(lambda batch=batch: (seed, batch[0]), asked.append, lambda: f"batch {batch[0]}")  # noqa: B023
        while True:
            time.sleep(own.random() * draw.choice([0.0, 0.002, 0.006]))
            distributed.all_reduce(torch.ones(1))
            batch[0] += 1
            if batch[0] == at.get(rank):
                os.kill(os.getpid(), signal.SIGTERM)
            if asked and (seed, batch[0]) >= watch.agree("terminate", (seed, batch[0])):
                break
        watch.stop()
        left = [None] * 3
        distributed.all_gather_object(left, batch[0])
        assert len(set(left)) == 1, left


@pytest.mark.processes
def test_processes_in_collectives_leave_together():
    assert watched_ranks(3, leave_often, QUICK) == [End(0, "")] * 3


class Counted:
    """A store that counts its calls."""

    def __init__(self, store: Any) -> None:
        self.store, self.calls = store, 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(self.store, name)


def steps_of(watch: Watch, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Wait until the thread of a watch has made so many further steps."""
    made, enough = iter(range(number)), threading.Event()
    step = watch._thread._step

    def counted() -> None:
        step()
        if next(made, None) is None:
            enough.set()

    monkeypatch.setattr(watch._thread, "_step", counted)
    watch._thread.wake()
    assert enough.wait(HANGS_AFTER)


@pytest.mark.parametrize("runs", [0, 1, 2])
def test_no_rank_calls_the_store_once_rank_0_has_ended(runs, monkeypatch):
    """Rank 0 hosts the store. A later call would make torch print a trace, although the run has ended well."""
    with watches(3) as three:
        stores = [Counted(watch._board._store) for watch in three]
        for watch, store in zip(three, stores, strict=True):
            monkeypatch.setattr(watch._board, "_store", store)
        for _ in range(runs):
            together(three, 2, lambda: 0.0, lambda rank: None)
        three[2].close()  # has ended before
        three[0]._at_exit()
        calls = [store.calls for store in stores]
        steps_of(three[1], monkeypatch, 5)
        three[1]._at_exit()
        assert [store.calls for store in stores] == calls
        assert not three[1]._thread.usable


def test_rank_0_does_not_wait_for_a_rank_that_is_gone():
    with watches(2, replace(QUICK, departure=0.01)) as both:
        both[1]._thread.close(HANGS_AFTER)  # as a process that is killed after its last run
        both[0]._at_exit()
        assert both[0]._thread.closed
