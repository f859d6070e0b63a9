"""A rank does not reach the collective: it is named with its line, and all ranks end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from lightlib.launch.watch.hang_report import RankLocation, location_of_thread, verdict
from lightlib.launch.watch.watch import Watch
from tests.launch.watched_ranks import PATIENT, End, heard, is_at, tell, watched_ranks

ENDS_RANKS = replace(PATIENT, grace=0.1)  # all of them: none leaves its collective, or its sleep, by itself
TIMEOUT = 0.2  # it begins when all ranks are where they stay, so a busy machine cannot make it too short


def start(watch: Watch, step: int) -> None:
    watch.start(lambda: (step,), lambda kind: None, lambda: f"step {step}")


def begin(watch: Watch, step: int, at: str) -> None:
    """Start a run in which the watch looks for hangs once each rank stays where it is."""
    notes: list[str] = []

    def position() -> tuple[int, ...]:
        if notes:
            heard(*notes)
            notes.clear()
        return (step,)

    watch.start(position, lambda kind: None, lambda: f"step {step}")
    notes.extend(f"rank {rank} stays" for rank in range(watch.world_size))
    stays(watch.rank, at)


def stays(rank: int, at: str) -> None:
    """Notify all ranks when the calling thread is at `at`: a collective, or the text of a line."""
    thread = threading.get_ident()

    def look() -> None:
        while not is_at(rank, thread, at):
            time.sleep(0.002)
        tell(f"rank {rank} stays")

    threading.Thread(target=look, daemon=True).start()


def sleeps(rank: int, watch: Watch) -> None:
    begin(watch, 7, "time.sleep(1e5)" if rank == 1 else "a barrier")
    if rank == 1:
        time.sleep(1e5)
    distributed.barrier()


@pytest.mark.processes
def test_a_rank_that_sleeps_is_named_with_its_line():
    first, second, third = watched_ranks(3, sleeps, ENDS_RANKS, TIMEOUT)
    assert [first.code, second.code, third.code] == [1, 1, 1]
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.strip() == "time.sleep(1e5)")
    assert first.text.strip() == (
        f"No progress for 0.2 s. Rank 1 has been at step 7 in {__file__}:{line} sleeps: `time.sleep(1e5)`. "
        "Ranks 0, 2 wait for it in a barrier of step 7."
    )
    assert second.text.strip() == "Rank 1 ends: rank 1 did not reach the collective in which the other ranks wait."
    assert third.text.strip() == "Rank 2 ends: rank 1 did not reach the collective in which the other ranks wait."


def sleeps_in_training(rank: int, watch: Watch) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    begin(watch, 3, "sum(range(1000))" if rank == 0 else "the all-reduce of gradients (backward)")
    if rank == 0:
        while True:  # it computes, and never reaches a collective
            sum(range(1000))
    model(torch.ones(2, 2)).sum().backward()


@pytest.mark.processes
def test_the_wait_of_a_backward_pass():
    first, second = watched_ranks(2, sleeps_in_training, ENDS_RANKS, TIMEOUT)
    assert (first.code, second.code) == (1, 1)
    assert "Rank 0 has been at step 3 in " in first.text
    assert first.text.strip().endswith("Rank 1 waits for it in the all-reduce of gradients (backward) of step 3.")


def stands_still(rank: int, watch: Watch) -> None:
    processes = [0, 0]
    distributed.all_gather_object(processes, os.getpid())
    if rank == 1:
        start(watch, 3)
        heard("rank 0 stays")
        os.kill(os.getpid(), signal.SIGSTOP)
    watch.before_end = lambda: os.kill(processes[1], signal.SIGKILL)  # as a launcher does
    threading.Thread(target=tell_when_stopped, args=(1, processes[1]), daemon=True).start()
    begin(watch, 3, "the all-reduce")
    distributed.all_reduce(torch.ones(1))


def tell_when_stopped(rank: int, process: int) -> None:
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.002)
    tell(f"rank {rank} stays")


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="looks in /proc whether the process is stopped")
def test_a_process_that_is_stopped_does_not_answer():
    first, second = watched_ranks(2, stands_still, replace(ENDS_RANKS, answer=0.1), TIMEOUT)
    assert (first.code, second.code) == (1, -signal.SIGKILL)
    assert first.text.strip() == (
        "No progress for 0.2 s. Rank 1 does not answer: its process is stopped or gone, or native code holds the "
        "interpreter. Rank 0 waits for it in the all-reduce of step 3."
    )


def late_for_gloo(rank: int, watch: Watch) -> None:
    start(watch, 4)
    try:
        if rank == 1:
            stays(rank, "time.sleep(1e5)")
            time.sleep(1e5)
        heard("rank 1 stays")
        distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=0.1), distributed.group.WORLD)
        distributed.all_reduce(torch.ones(1))
    except RuntimeError as error:
        watch.end(watch.fail(error))


@pytest.mark.processes
def test_a_collective_that_times_out_by_itself_is_told_alike():
    first, second = watched_ranks(2, late_for_gloo, ENDS_RANKS)
    assert (first.code, second.code) == (1, 1)
    assert "Rank 1 has been at step 4 in " in first.text
    assert "time.sleep(1e5)" in first.text
    assert first.text.strip().endswith("Rank 0 waits for it in the all-reduce of step 4.")


def nobody_waits(rank: int, watch: Watch) -> None:
    looks = []

    def position() -> tuple[int, ...]:
        looks.append(time.monotonic())
        return (0,)

    watch.start(position, lambda kind: None, lambda: "step 0")
    while not looks or looks[-1] - looks[0] < 2 * watch.timeout:
        time.sleep(0.002)
    watch.stop()


@pytest.mark.processes
def test_without_a_rank_that_waits_nothing_happens():
    assert watched_ranks(2, nobody_waits, timeout=0.1) == [End(0, "")] * 2


def slow_but_moving(rank: int, watch: Watch) -> None:
    """At each look a rank is idle beyond the timeout or moves; rank 0 moves after asking three times."""
    inquiry, step = watch._hang_detector, [0]

    def position() -> tuple[int, ...]:
        inquiry._since -= 2 * watch.timeout
        if rank == 1 or inquiry._number >= 3:
            step[0] += 1
        return (step[0],)

    if rank == 0:
        heard("rank 1 moves")
    watch.start(position, lambda kind: None, lambda: f"step {step[0]}")
    if rank == 1:
        tell("rank 1 moves")
        while inquiry._number < 3:
            time.sleep(0.002)
    distributed.barrier()
    watch.stop()


@pytest.mark.processes
def test_a_rank_that_moves_is_waited_for():
    assert watched_ranks(2, slow_but_moving) == [End(0, "")] * 2


def different_groups(rank: int, watch: Watch) -> None:
    group = [distributed.new_group([0, 1]), distributed.new_group([0, 1])][rank]
    begin(watch, 5, "the all-reduce")
    distributed.all_reduce(torch.ones(1), group=group)


@pytest.mark.processes
def test_all_wait_in_one_line():
    first, second = watched_ranks(2, different_groups, ENDS_RANKS, TIMEOUT)
    assert (first.code, second.code) == (1, 1)
    said = "All ranks are blocked in the same line: their groups or tensor sizes differ, or the network has failed."
    assert f"No progress for 0.2 s. {said} Rank 0 has been at step 5, " in first.text
    assert "waiting in the all-reduce in " in first.text


def different_collectives(rank: int, watch: Watch) -> None:
    group = [distributed.new_group([0, 1]), distributed.new_group([0, 1])][rank]
    begin(watch, 5, "a barrier" if rank == 0 else "the all-reduce")
    if rank == 0:
        distributed.barrier(group)
    distributed.all_reduce(torch.ones(1), group=group)


@pytest.mark.processes
def test_all_wait_for_different_things():
    first, second = watched_ranks(2, different_collectives, ENDS_RANKS, TIMEOUT)
    assert (first.code, second.code) == (1, 1)
    assert (
        "No progress for 0.2 s. The ranks are blocked in different collectives: Rank 0 has been at step 5, "
        in first.text
    )
    assert "waiting in the all-reduce in " in first.text


def outside_of_the_run(rank: int, watch: Watch) -> None:
    if rank == 1:
        stays(rank, "time.sleep(1e5)")
        time.sleep(1e5)
    begin(watch, 0, "a barrier")
    distributed.barrier()


@pytest.mark.processes
def test_a_rank_that_does_not_come_to_the_run():
    first, second = watched_ranks(2, outside_of_the_run, ENDS_RANKS, TIMEOUT)
    assert "Rank 1 has been outside of the run in " in first.text
    assert (first.code, second.code) == (1, 1)


# the words
def place(rank: int, step: int, waits: str = "a barrier", still: float = 99.0) -> RankLocation:
    return RankLocation(rank, (step,), f"step {step}", f"train.py:{rank} main", "go()", waits, "", still)


def test_the_rank_that_is_behind_is_named_when_all_wait():
    culprits, text = verdict([place(0, 7), place(1, 6, "the all-reduce"), place(2, 7)], 3, 30.0, False)
    assert culprits == [1]
    assert text == (
        "No progress for 30 s. Rank 1 has been at step 6, waiting in the all-reduce in train.py:1 main: `go()`. "
        "Ranks 0, 2 wait for it in a barrier of step 7."
    )


def test_many_ranks_are_counted():
    _, text = verdict([place(rank, 7, "" if rank == 3 else "a barrier") for rank in range(100)], 100, 30.0, False)
    assert text.endswith("Ranks 0, 1, 2, 4, 5, 6, 7, 8, … (99 in all) wait for it in a barrier of step 7.")


def test_ranks_that_do_not_answer():
    culprits, text = verdict([place(0, 7)], 3, 30.0, False)
    assert culprits == [1, 2]
    assert text.startswith("No progress for 30 s. Ranks 1, 2 do not answer: their process is stopped or gone")


def test_who_has_moved_is_asked_again_later():
    moved = place(1, 7, "", still=3.0)
    assert verdict([place(0, 7), moved], 2, 30.0, False) is None
    assert verdict([place(0, 7), moved], 2, 30.0, True) is not None


def test_a_wait_for_data_and_an_event_are_no_collectives():
    seen: list[RankLocation] = []
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    while sys._current_frames()[thread.ident].f_code.co_name != "wait":
        time.sleep(0.002)
    seen.append(location_of_thread(0, thread.ident or 0))
    done.set()
    thread.join()
    assert seen[0].waits == ""
    here = location_of_thread(0, threading.get_ident())
    assert here.line.split()[-1] == sys._getframe().f_code.co_name
