"""A rank fails: all end in time, not with 0; rank 0's last lines are the first failure and its rank."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
from torch import distributed

from lightlib.launch.watch.board import Board
from lightlib.launch.watch.failure import Failure, OtherRankError, is_echo, is_timeout
from lightlib.launch.watch.watch import Watch
from tests.launch.watched_ranks import HANGS_AFTER, PATIENT, End, heard, others_ended, tell, watched_ranks

ENDS_RANKS = replace(PATIENT, grace=0.1)  # those that do not end by themselves


class Boom(Exception):
    """The error of these tests."""


def begin(watch: Watch, batch: list[int] | None = None) -> None:
    batch = batch if batch is not None else [0]
    watch.start(lambda: (batch[0],), lambda kind: None, lambda: f"step {batch[0]}")


def run(watch: Watch, train) -> None:
    """Train as core does: announce an error before the teardown."""
    begin(watch)
    try:
        train()
    except Exception as error:
        failure = watch.fail(error)
        if failure.rank != watch.rank:
            raise OtherRankError(failure) from None
        raise
    finally:
        watch.stop()


def raise_boom() -> None:
    raise Boom("on one rank only")


def one_raises_others_reduce(rank: int, watch: Watch) -> None:
    run(watch, raise_boom if rank == 1 else lambda: distributed.all_reduce(torch.ones(2)))


def one_raises_others_sleep(rank: int, watch: Watch) -> None:
    run(watch, raise_boom if rank == 1 else lambda: time.sleep(1000))


def rank_0_raises_others_sleep(rank: int, watch: Watch) -> None:
    run(watch, raise_boom if rank == 0 else lambda: time.sleep(1000))


@pytest.mark.processes
@pytest.mark.parametrize("body", [one_raises_others_reduce, one_raises_others_sleep])
def test_rank_0_ends_with_the_traceback_of_the_rank_that_raised(body):
    first, second, third = watched_ranks(3, body, ENDS_RANKS)
    assert [first.code, second.code, third.code] == [1, 1, 1]
    assert first.text.strip().endswith("tests.launch.watch.test_failure.Boom: on one rank only")
    assert "Rank 1 failed first:\nTraceback (most recent call last):\n" in first.text
    assert first.text.count("Traceback") == 1
    assert second.text.strip().endswith(
        "Rank 1 ends: rank 1 failed: tests.launch.watch.test_failure.Boom: on one rank only."
    )
    assert "Rank 2 ends: rank 1 failed: " in third.text


def rank_0_is_interrupted_others_sleep(rank: int, watch: Watch) -> None:
    """Core: Ctrl-C takes effect at once. The other ranks look when rank 0 sleeps at its exit."""
    if rank != 0:
        watch.timing = replace(ENDS_RANKS, poll=HANGS_AFTER)
        begin(watch)
        watch._thread.run(lambda: None)
        tell("rank 1 does not look")
        heard("rank 0 sleeps")
        watch.timing = ENDS_RANKS
        watch._thread.wake()
        time.sleep(1000)
    begin(watch)
    heard("rank 1 does not look")
    watch.fail(KeyboardInterrupt())
    watch.stop()
    watch.timing = replace(ENDS_RANKS, poll=HANGS_AFTER)

    def sleep(seconds: float) -> None:
        assert 0 < seconds <= 2 * HANGS_AFTER
        tell("rank 0 sleeps")
        others_ended()

    time.sleep = sleep


@pytest.mark.processes
def test_rank_0_that_is_interrupted_lets_the_others_see_it():
    first, second = watched_ranks(2, rank_0_is_interrupted_others_sleep, ENDS_RANKS)
    assert (first.code, second.code) == (0, 130)  # 0: here, where nothing ends the program
    assert "store" not in second.text


@pytest.mark.processes
def test_rank_0_itself_raises():
    first, second = watched_ranks(2, rank_0_raises_others_sleep, ENDS_RANKS)
    assert first.code == second.code == 1
    assert "Rank 0 failed first:\nTraceback" in first.text
    assert first.text.strip().endswith("Boom: on one rank only")
    assert second.text.strip().endswith(
        "Rank 1 ends: rank 0 failed: tests.launch.watch.test_failure.Boom: on one rank only."
    )


def killed(rank: int, watch: Watch) -> None:
    def train() -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.all_reduce(torch.ones(2))

    def report() -> None:
        while not watch._handling:  # rank 0 has lost its connection, and waits for the reason
            time.sleep(0.005)
        watch.report_death(1, -9, "the kernel was busy\nand then nothing\n")

    if rank == 0:
        threading.Thread(target=report, daemon=True).start()
    run(watch, train)


@pytest.mark.processes
def test_the_launcher_says_which_rank_was_killed():
    first, second, third = watched_ranks(3, killed, ENDS_RANKS)
    assert (first.code, second.code, third.code) == (1, -9, 1)
    assert first.text.strip().endswith(
        "The last lines that rank 1 wrote to stderr:\n  the kernel was busy\n  and then nothing\n"
        "Rank 1 was killed by SIGKILL (often: out of memory)."
    )
    assert third.text.strip().endswith("Rank 2 ends: rank 1 was killed by SIGKILL (often: out of memory).")


def killed_unseen(rank: int, watch: Watch) -> None:
    def train() -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.all_reduce(torch.ones(2))

    run(watch, train)


@pytest.mark.processes
def test_a_rank_that_is_killed_and_nobody_says_so():
    first, second = watched_ranks(2, killed_unseen, replace(PATIENT, reason=0.1))
    assert (first.code, second.code) == (1, -9)
    assert "Rank 0 lost its connection to another rank, and no rank reported why" in first.text
    assert "The error on rank 0:\nTraceback" in first.text


def host_killed(rank: int, watch: Watch) -> None:
    def train() -> None:
        if rank == 0:
            heard("rank 1 is in the run")
            os.kill(os.getpid(), signal.SIGKILL)
        tell("rank 1 is in the run")
        time.sleep(1000)

    run(watch, train)


@pytest.mark.processes
def test_rank_0_is_killed_and_the_store_with_it():
    first, second = watched_ranks(2, host_killed, ENDS_RANKS)
    assert (first.code, second.code) == (-9, 1)
    assert "The process that hosts the store of the ranks is gone" in second.text


def terminated_before_its_handlers(rank: int, watch: Watch) -> None:
    def train() -> None:
        if rank == 0:
            heard("rank 1 has its SIGTERM")
            os.kill(os.getpid(), signal.SIGTERM)
        watch.request("terminate")
        tell("rank 1 has its SIGTERM")
        time.sleep(1000)

    run(watch, train)


@pytest.mark.processes
def test_sigterm_to_all_ends_rank_0_sooner_and_the_others_with_the_code_of_sigterm():
    first, second = watched_ranks(2, terminated_before_its_handlers, ENDS_RANKS)
    assert (first.code, second.code) == (-15, 143)


def exit_silently(rank: int, watch: Watch) -> None:
    def train() -> None:
        if rank == 1:
            os._exit(3)
        threading.Thread(target=launcher, daemon=True).start()
        time.sleep(1000)

    def launcher() -> None:
        others_ended()
        watch.report_death(1, 3)

    run(watch, train)


@pytest.mark.processes
def test_a_rank_that_exits_without_a_word():
    first, second = watched_ranks(2, exit_silently, ENDS_RANKS)
    assert (first.code, second.code) == (1, 3)
    assert first.text.strip() == "Rank 1 ended with exit code 3."


def exit_as_if_all_was_done(rank: int, watch: Watch) -> None:
    def train() -> None:
        if rank == 1:
            os._exit(0)
        threading.Thread(target=launcher, daemon=True).start()
        time.sleep(1000)

    def launcher() -> None:
        others_ended()
        watch.report_death(1, 0, "I have seen enough")

    run(watch, train)


@pytest.mark.processes
def test_a_rank_that_leaves_a_run_with_exit_code_0():
    first, second = watched_ranks(2, exit_as_if_all_was_done, ENDS_RANKS)
    assert (first.code, second.code) == (1, 0)
    assert first.text.strip().splitlines() == [
        "The last lines that rank 1 wrote to stderr:",
        "  I have seen enough",
        "Rank 1 ended with exit code 0 while the run still needed it.",
    ]


def ends_after_its_run(rank: int, watch: Watch) -> None:
    run(watch, lambda: None)
    if rank == 0:
        others_ended()
        watch.report_death(1, 0)
        assert watch.look() is None
        sys.stderr.write("alone\n")
        sys.stderr.flush()
        run(watch, lambda: time.sleep(1000))


@pytest.mark.processes
def test_a_rank_that_has_ended_is_missed_by_the_next_run_only():
    first, second = watched_ranks(2, ends_after_its_run, ENDS_RANKS)
    assert (first.code, second.code) == (1, 0)
    assert first.text == "alone\n\nRank 1 ended with exit code 0 while the run still needed it.\n"


def caught_and_run_again(rank: int, watch: Watch) -> None:
    for attempt in range(3):
        try:
            run(watch, raise_boom)
        except (Boom, OtherRankError):
            sys.stderr.write(f"caught {attempt}\n")
    total = torch.ones(1)
    run(watch, lambda: distributed.all_reduce(total))
    assert total.item() == 2
    assert watch.failure is None


@pytest.mark.processes
def test_a_program_may_catch_what_all_ranks_raise_and_run_again():
    first, second = watched_ranks(2, caught_and_run_again)
    assert (first.code, second.code) == (0, 0), [first.text, second.text]
    assert "caught 2" in first.text


class Slow:
    """A store that answers one question when it is allowed to."""

    def __init__(self, question: str) -> None:
        self.store, self.question = distributed.HashStore(), question
        self.asked, self.allowed = threading.Event(), threading.Event()

    def __getattr__(self, name: str):
        if name == "clone":
            raise AttributeError(name)
        return getattr(self.store, name)

    def get(self, key: str) -> bytes:
        if key.endswith(self.question):
            self.asked.set()
            self.allowed.wait(HANGS_AFTER)
        return self.store.get(key)


def test_a_failure_that_was_caught_is_not_one_of_the_next_run():
    """The thread has read it already, and comes to it when the program has begun another run."""
    store = Slow("/1/failure")
    watch = Watch(store, 0, 2, HANGS_AFTER, timing=replace(PATIENT, store=0.05))
    begin(watch)
    failure = replace(Failure.of_error(1, Boom("caught")), round=1)
    Board(store, "lightlib/watch//").write("1/failure", failure.to_json())
    assert store.asked.wait(HANGS_AFTER)
    watch.stop()
    begin(watch)
    store.allowed.set()
    while not watch._thread.run(watch._look_for_failure):
        pass
    assert watch.failure is None
    watch.stop()
    watch.close()


def raises_between_runs(rank: int, watch: Watch) -> None:
    run(watch, lambda: None)
    if rank == 1:
        raise_boom()
    run(watch, lambda: distributed.all_reduce(torch.ones(1)))


@pytest.mark.processes
def test_a_rank_raises_between_two_runs():
    first, second = watched_ranks(2, raises_between_runs)
    assert (first.code, second.code) == (1, 1)
    assert "Rank 1 failed first:\nTraceback" in first.text
    assert first.text.strip().endswith("Boom: on one rank only")
    assert "Boom: on one rank only" in second.text


def raises_after_rank_0_is_done(rank: int, watch: Watch) -> None:
    def train() -> None:
        if rank == 1:
            while watch._host_left != 1:
                time.sleep(0.005)
            raise_boom()

    run(watch, train)


@pytest.mark.processes
def test_rank_0_waits_for_the_others_at_its_end_and_fails_with_them():
    first, second = watched_ranks(2, raises_after_rank_0_is_done)
    assert (first.code, second.code) == (1, 1)
    assert first.text.strip().endswith("Boom: on one rank only")


def put_away_for_ever(rank: int, watch: Watch) -> None:
    begin(watch)
    if rank == 0:
        watch.fail(Boom("first"))
    time.sleep(1000)


@pytest.mark.processes
def test_a_teardown_that_does_not_end_is_ended():
    first, second = watched_ranks(2, put_away_for_ever, ENDS_RANKS)
    assert (first.code, second.code) == (1, 1)
    assert first.text.strip().endswith("Boom: first")


def orphan(rank: int, watch: Watch) -> None:
    if rank != 1:
        others_ended()
        return
    begin(watch)
    watch._parent = os.getppid() + 1  # as if it had ended and this process had been given to another
    time.sleep(1000)


@pytest.mark.processes
def test_a_process_whose_launcher_is_gone_ends():
    _, second = watched_ranks(2, orphan, ENDS_RANKS)
    assert second.code == 1
    assert second.text.strip().endswith("The process that started this one, rank 0's, is gone.")


def asleep_before_the_next_run(rank: int, watch: Watch) -> None:
    run(watch, lambda: None)
    if rank == 0:
        watch.timing = ENDS_RANKS
        time.sleep(1000)
    run(watch, raise_boom)


@pytest.mark.processes
def test_a_rank_that_is_late_for_the_run_in_which_another_fails():
    first, second = watched_ranks(2, asleep_before_the_next_run)
    assert (first.code, second.code) == (1, 1)
    assert first.text.strip().endswith("Boom: on one rank only")


def finish(rank: int, watch: Watch) -> None:
    if rank == 0:
        run(watch, lambda: None)
        tell("0 has left")
    elif rank == 1:
        run(watch, lambda: heard("0 has left"))
        tell("1 has left")
    else:
        run(watch, lambda: heard("1 has left"))


@pytest.mark.processes
def test_ranks_that_end_at_different_times_end_well():
    assert watched_ranks(3, finish) == [End(0, "")] * 3


@pytest.mark.parametrize(
    ("error", "echo", "late"),
    [
        (RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:50381."), True, False),
        (
            RuntimeError("[/gloo/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"),
            True,
            True,
        ),
        (RuntimeError("Connection reset by peer"), True, False),
        (RuntimeError("NCCL error: remote process exited or there was a network error"), True, False),
        (distributed.DistNetworkError("Broken pipe"), True, False),
        (distributed.DistStoreError("wait timeout after 2000ms, keys: /a"), True, True),
        (distributed.DistBackendError("NCCL communicator was aborted on rank 1."), True, False),
        (RuntimeError("[enforce fail at pair.cc:466] op.preamble.length <= op.nbytes. 8 vs 4"), False, False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False, False),
        (RuntimeError("the request timed out"), False, False),
        (ConnectionResetError("Connection reset by peer"), False, False),
        (TimeoutError("timed out"), False, False),
    ],
)
def test_what_is_only_an_echo(error, echo, late):
    assert is_echo(error) == echo
    assert is_timeout(error) == late
    wrapped = Boom("a callback failed")
    wrapped.__cause__ = error
    assert is_echo(wrapped) == echo


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-9, "Rank 3 was killed by SIGKILL (often: out of memory)."),
        (-11, "Rank 3 was killed by SIGSEGV (a crash in native code)."),
        (-15, "Rank 3 was killed by SIGTERM."),
        (2, "Rank 3 ended with exit code 2."),
    ],
)
def test_how_a_death_is_told(code, text):
    failure = Failure.of_death(3, code, "")
    assert failure.text == text
    assert Failure.from_json(failure.to_json()) == failure


def test_a_very_long_traceback_is_shortened():
    text = Failure.of_error(0, ValueError("x" * 200_000)).text
    assert len(text) < 61_000
    assert "characters left out" in text
