"""A rank does not come to where the others wait: it is named, with its line, and all ranks end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch import distributed, nn

from lightlib.launch.hang import Place, place_of_thread, verdict
from lightlib.launch.watch import Watch
from tests.launch.ranks import ranks

LATE = {"timeout": 4.0}  # a busy machine may keep a rank from moving for a while


def begin(watch: Watch, step: int) -> None:
    watch.start(lambda: (step,), lambda kind: None, lambda: f"step {step}")


def sleeps(rank: int, watch: Watch) -> None:
    begin(watch, 7)
    if rank == 1:
        time.sleep(1e5)
    distributed.barrier()


def test_a_rank_that_sleeps_is_named_with_its_line():
    first, second, third = ranks(3, sleeps, **LATE)
    assert [first.code, second.code, third.code] == [1, 1, 1]
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "time.sleep(1e5)" in text)
    assert first.text.strip() == (
        f"No progress for 4 s. Rank 1 has been at step 7 in {__file__}:{line} sleeps: `time.sleep(1e5)`. "
        "Ranks 0, 2 wait for it in a barrier of step 7."
    )
    # torch may have said before it that the store, which rank 0 holds, is gone.
    assert second.text.strip().endswith("Rank 1 ends: rank 1 did not come to where the others wait.")
    assert max(first.seconds, second.seconds, third.seconds) < 60


def sleeps_in_training(rank: int, watch: Watch) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    begin(watch, 3)
    if rank == 0:
        while True:  # it computes, and comes to no collective
            sum(range(1000))
    model(torch.ones(2, 2)).sum().backward()


def test_the_wait_of_a_backward_pass():
    first, second = ranks(2, sleeps_in_training, **LATE)
    assert (first.code, second.code) == (1, 1)
    assert "Rank 0 has been at step 3 in " in first.text
    assert first.text.strip().endswith("Rank 1 waits for it in the all-reduce of gradients (backward) of step 3.")


def stands_still(rank: int, watch: Watch) -> None:
    processes = [0, 0]
    distributed.all_gather_object(processes, os.getpid())
    begin(watch, 3)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    watch.before_end = lambda: os.kill(processes[1], signal.SIGKILL)  # as a launcher does
    distributed.all_reduce(torch.ones(1))


def test_a_process_that_is_stopped_does_not_answer():
    first, second = ranks(2, stands_still, **LATE)
    assert (first.code, second.code) == (1, -signal.SIGKILL)
    assert first.text.strip() == (
        "No progress for 4 s. Rank 1 does not answer: its process is stopped or gone, or native code holds the "
        "interpreter. Rank 0 waits for it in the all-reduce of step 3."
    )


def late_for_gloo(rank: int, watch: Watch) -> None:
    begin(watch, 4)
    try:
        if rank == 1:
            time.sleep(1e5)
        distributed.all_reduce(torch.ones(1))
    except RuntimeError as error:
        watch.end(watch.fail(error))


def test_a_collective_that_times_out_by_itself_is_told_alike():
    first, second = ranks(2, late_for_gloo, patience=2)
    assert (first.code, second.code) == (1, 1)
    assert "Rank 1 has been at step 4 in " in first.text
    assert "time.sleep(1e5)" in first.text
    assert first.text.strip().endswith("Rank 0 waits for it in the all-reduce of step 4.")


def nobody_waits(rank: int, watch: Watch) -> None:
    begin(watch, 0)
    time.sleep(2)
    watch.stop()


def test_without_a_rank_that_waits_nothing_happens():
    assert [(end.code, end.text) for end in ranks(2, nobody_waits, timeout=0.5)] == [(0, "")] * 2


def slow_but_moving(rank: int, watch: Watch) -> None:
    step = [0]
    watch.start(lambda: (step[0],), lambda kind: None, lambda: f"step {step[0]}")
    for _ in range(12 if rank == 1 else 0):
        time.sleep(0.5)
        step[0] += 1
    distributed.barrier()
    watch.stop()


def test_a_rank_that_moves_is_waited_for():
    assert [(end.code, end.text) for end in ranks(2, slow_but_moving, **LATE)] == [(0, "")] * 2


def different_groups(rank: int, watch: Watch) -> None:
    begin(watch, 5)
    group = [distributed.new_group([0, 1]), distributed.new_group([0, 1])][rank]
    distributed.all_reduce(torch.ones(1), group=group)


def test_all_wait_in_one_line():
    first, second = ranks(2, different_groups, **LATE)
    assert (first.code, second.code) == (1, 1)
    said = "All ranks wait in the same line, and none goes on: their groups or sizes differ, or the network has failed."
    assert f"No progress for 4 s. {said} Rank 0 has been at step 5, " in first.text
    assert "waiting in the all-reduce in " in first.text


def different_collectives(rank: int, watch: Watch) -> None:
    begin(watch, 5)
    group = [distributed.new_group([0, 1]), distributed.new_group([0, 1])][rank]
    if rank == 0:
        distributed.barrier(group)
    distributed.all_reduce(torch.ones(1), group=group)


def test_all_wait_for_different_things():
    first, second = ranks(2, different_collectives, **LATE)
    assert (first.code, second.code) == (1, 1)
    assert "No progress for 4 s. All ranks wait, not for the same: Rank 0 has been at step 5, " in first.text
    assert "waiting in the all-reduce in " in first.text


def outside_of_the_run(rank: int, watch: Watch) -> None:
    if rank == 1:
        time.sleep(1e5)
    begin(watch, 0)
    distributed.barrier()


def test_a_rank_that_does_not_come_to_the_run():
    first, second = ranks(2, outside_of_the_run, **LATE)
    assert "Rank 1 has been outside of the run in " in first.text
    assert (first.code, second.code) == (1, 1)


# the words
def place(rank: int, step: int, waits: str = "a barrier", still: float = 99.0) -> Place:
    return Place(rank, (step,), f"step {step}", f"train.py:{rank} main", "go()", waits, "", still)


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
    seen: list[Place] = []
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    time.sleep(0.05)
    seen.append(place_of_thread(0, thread.ident or 0))
    done.set()
    thread.join()
    assert seen[0].waits == ""
    here = place_of_thread(0, threading.get_ident())
    assert here.line.split()[-1] == sys._getframe().f_code.co_name
