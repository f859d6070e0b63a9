"""EndOfData: ranks detect by themselves that their data end after different numbers of batches."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import replace

import pytest
from torch import distributed

from lightlib.launch.watch.board import Board
from lightlib.launch.watch.end_of_data import MORE
from lightlib.launch.watch.hang_detector import HangDetector
from lightlib.launch.watch.watch import OtherRankError, Watch
from tests.launch.test_watch import QUICK, watches
from tests.launch.watched_ranks import HANGS_AFTER, PATIENT, heard, tell, watched_ranks


class Reader(threading.Thread):
    """A main thread that reads ahead, as core does, and waits for all ranks after each batch.

    Attributes:
        found: The batch counts of all ranks at the end of each pass, or the error.
    """

    def __init__(self, watch: Watch, passes: list[int], batch: threading.Barrier, seed: int) -> None:
        super().__init__(daemon=True)
        self.watch, self.passes, self.batch = watch, passes, batch
        self.draw, self.position, self.found = random.Random(seed), 0, []

    def run(self) -> None:
        self.watch.start(tuple, lambda kind: None, lambda: "")
        try:
            for batches in self.passes:
                self.read(batches)
        except (OtherRankError, threading.BrokenBarrierError) as error:
            self.found.append(error)
        self.watch.stop()

    def read(self, batches: int) -> None:
        self.position = 0
        self.watch.follow_data(lambda: self.position)
        while self.position < batches:
            time.sleep(self.draw.choice([0.0, 0.001]))
            if self.position + 1 == batches:
                self.found.append(told := self.watch.end_of_data(batches))
                if len(set(told.values())) > 1:
                    self.batch.abort()
            self.position += 1
            self.batch.wait(HANGS_AFTER)


def read(*passes: list[int], seed: int = 0) -> list[list[object]]:
    """Return the counts that each rank receives at the end of passes of so many batches."""
    barrier = threading.Barrier(len(passes))
    with watches(len(passes)) as made:
        ranks = [
            Reader(watch, each, barrier, seed + i) for i, (watch, each) in enumerate(zip(made, passes, strict=True))
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(HANGS_AFTER)
        assert not any(rank.is_alive() for rank in ranks), "a rank hangs"
    return [rank.found for rank in ranks]


@pytest.mark.parametrize("seed", range(5))
def test_equal_numbers(seed):
    passes = [3, 1, 1, 7, 1, 2]
    assert read(passes, passes, passes, seed=seed) == [[dict.fromkeys(range(3), n) for n in passes]] * 3


@pytest.mark.parametrize("longer", [0, 1])
def test_one_has_more(longer):
    passes = [[4, 2], [4, 2]]
    passes[longer][1] = 5
    first, second = read(*passes)
    shorter, other = (second, first) if longer == 0 else (first, second)
    assert shorter[:2] == [{0: 4, 1: 4}, {longer: MORE, 1 - longer: 2}]
    assert other[0] == {0: 4, 1: 4}


def test_all_end_without_a_collective_in_between():
    with watches(2) as made:
        told = [{}, {}]

        def end(rank: int) -> None:
            made[rank].start(tuple, lambda kind: None, lambda: "")
            made[rank].follow_data(lambda: 0)
            told[rank] = made[rank].end_of_data(3 + rank)

        threads = [threading.Thread(target=end, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANGS_AFTER)
        assert told == [{0: 3, 1: 4}] * 2
        for watch in made:
            watch.stop()


def test_the_failure_of_another_rank_ends_the_wait():
    with watches(2) as made:
        for watch in made:
            watch.start(tuple, lambda kind: None, lambda: "")
        made[1].fail(ValueError("no more disk"))
        with pytest.raises(OtherRankError, match="no more disk"):
            made[0].end_of_data(3)
        for watch in made:
            watch.stop()


def test_a_watch_that_is_closed_knows_nothing():
    watch = Watch(distributed.HashStore(), 0, 2, HANGS_AFTER, timing=QUICK)
    watch.start(tuple, lambda kind: None, lambda: "")
    watch.close()
    assert watch.end_of_data(3) == {}


def killed_or_waits(rank: int, watch: Watch) -> None:
    watch.start(tuple, lambda kind: None, lambda: "batch 3")
    if rank == 1:
        heard("waits")
        os.kill(os.getpid(), signal.SIGKILL)
    tell("waits")
    watch.end_of_data(3)


@pytest.mark.processes
def test_a_rank_that_was_killed_is_noticed_outside_of_collectives():
    first, second = watched_ranks(2, killed_or_waits, replace(PATIENT, answer=0.3))
    assert second.code == -signal.SIGKILL
    assert first.code == 1
    assert "The data of other ranks have ended, and they wait. Rank 1 does not answer" in first.text


def test_a_rank_that_is_only_late_blocks_nobody():
    board = Board(distributed.HashStore(), "")
    waits, late = (HangDetector(board, rank, 2, HANGS_AFTER, HANGS_AFTER) for rank in range(2))
    for detector in (waits, late):
        detector.begin(tuple, str)
    for _ in range(3):
        waits.ask_at_end_of_data()
        assert waits.step(news=False) is None
        assert waits.pending
        assert late.step(news=True) is None
        assert waits.step(news=True) is None
        assert not waits.pending  # it has the answer
        late.step(news=True)
