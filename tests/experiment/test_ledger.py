"""The ledger: several workers add, claim and end attempts, and may die at any write."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

pytest.importorskip("optuna")

from optuna.trial import TrialState

from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.ledger import Ledger, LostAttempt, require_new
from lightlib.experiment.ledger.storage import open_storage
from tests.experiment.stores import Alive, Killed, Numbered, memory, run_all, worker


@pytest.fixture
def shared():
    return memory()


def states(ledger):
    snapshot = ledger.snapshot()
    return [snapshot.state_of(trial) for trial in range(snapshot.trials)]


class TestAdd:
    def test_the_lowest_of_equal_attempts_holds(self, shared):
        ledger = Ledger(shared, "experiment")
        for trial in (0, 0, 1, 0):
            ledger.add(Entry(trial))
        snapshot = ledger.snapshot()
        assert [[one.number for one in chain] for chain in snapshot.chains.values()] == [[0], [2]]
        assert [one.number for one in snapshot.void] == [1, 3]

    def test_void_attempts_are_ended_and_never_run(self, shared):
        ledger, queue = worker(shared, Alive(), source=Numbered(1))
        ledger.add(Entry(0))
        ledger.add(Entry(0))
        assert list(run_all(queue, ledger)) == [0]
        assert ledger.snapshot().attempts[1].ended_as == "void"
        assert states(ledger) == ["completed"]

    def test_as_many_are_unfinished_as_may_be(self, shared):
        beats = Alive()
        queues = [worker(shared, beats, name, source=Numbered(5, concurrency=2))[1] for name in "abc"]
        assert [queue.next() is not None for queue in queues] == [True, True, False]

    def test_a_study_of_another_program_is_refused(self, shared):
        ledger = Ledger(shared, "experiment")
        require_new(ledger, "experiment")
        shared.create_new_trial(ledger.study)
        with pytest.raises(ValueError, match="has 1 trials that lightlib did not add") as error:
            require_new(ledger, "experiment")
        assert "Fix: another `name:`" in str(error.value)


class TestClaim:
    def test_one_worker_gets_it(self, tmp_path):
        with ExitStack() as stack:
            storages = [stack.enter_context(open_storage(tmp_path)) for _ in range(3)]
        ledgers = [Ledger(storage, "experiment") for storage in storages]
        ledgers[0].add(Entry(0))
        attempts = [ledger.snapshot().last(0) for ledger in ledgers]
        assert [
            ledger.claim(one, {"name": str(i)}) for i, (ledger, one) in enumerate(zip(ledgers, attempts, strict=True))
        ] == [True, False, False]
        assert ledgers[2].snapshot().last(0).attribute("owner") == {"name": "0"}

    def test_trials_that_have_begun_come_first(self, shared):
        beats = Alive()
        ledger, queue = worker(shared, beats, source=Numbered(3, 3))
        first = queue.next()
        ledger.add(Entry(1))
        ledger.end(first, "interrupted")
        assert queue.next().trial == 0


class TestEnd:
    def test_one_that_was_completed_after_all_is_not_continued(self, shared):
        """The owner was taken for dead while it slept."""
        beats = Alive()
        ledger, queue = worker(shared, beats)
        attempt = queue.next()
        ledger.add(attempt.successor("lost"))
        ledger.end(attempt, "completed", 0.5)
        assert queue.next() is None
        assert states(ledger) == ["completed"]
        assert [one.ended_as for one in ledger.snapshot().attempts] == ["completed", "void"]

    def test_the_owner_learns_that_it_lost_its_attempt(self, shared):
        ledger, queue = worker(shared, Alive())
        attempt = queue.next()
        ledger.take_over(attempt)
        for act in (
            lambda: ledger.report(attempt, 1, 0.5),
            lambda: ledger.write(attempt, "rung", 1),
            lambda: ledger.end(attempt, "completed", 0.5),
        ):
            with pytest.raises(LostAttempt, match="Attempt 0 of trial 0 was ended by another worker"):
                act()
        (again,) = [one for one in ledger.snapshot().attempts if one.attempt == 1]
        assert (again.before, again.reason, again.state) == (0, "lost", "waiting")

    def test_a_trial_fails_for_good_after_its_restarts(self, shared):
        ledger, queue = worker(shared, Alive(), max_restarts=2)
        numbers = list(run_all(queue, ledger, lambda ledger, attempt: ledger.end(attempt, "failed")))
        assert len(numbers) == 3
        assert states(ledger) == ["errored"]
        assert queue.is_done()

    def test_lost_and_interrupted_attempts_are_no_failures(self, shared):
        ledger, queue = worker(shared, Alive(), max_restarts=0)
        for _ in range(4):
            ledger.take_over(queue.next())
            ledger.end(queue.next(), "interrupted")
        ledger.end(queue.next(), "failed")
        assert states(ledger) == ["errored"]
        assert len(ledger.snapshot().chains[0]) == 9

    def test_a_paused_one_waits_for_its_promotion(self, shared):
        ledger, queue = worker(shared, Alive())
        ledger.end(queue.next(), "paused")
        assert states(ledger) == ["paused"]
        assert queue.next() is None
        ledger.add(ledger.snapshot().last(0).successor("paused", rung=1))
        assert (queue.next().more, states(ledger)) == ({"rung": 1}, ["running"])

    def test_one_that_another_program_ended_is_continued(self, shared):
        ledger, queue = worker(shared, Alive())
        shared.set_trial_state_values(queue.next().id, TrialState.FAIL)
        assert list(run_all(queue, ledger)) == [1]
        assert states(ledger) == ["completed"]

    def test_what_the_last_attempt_wrote_counts(self, shared):
        """The owner of an earlier one may write late, when it has lost it."""
        ledger, queue = worker(shared, Alive())
        for value in ("go", "pause"):
            attempt = queue.next()
            ledger.write(attempt, "decision", value)
            ledger.take_over(attempt)
        assert ledger.snapshot().attribute(0, "decision") == "pause"
        assert ledger.snapshot().attribute(0, "another") is None


def script(ledger, queue):
    """All that a worker does with three trials: it fails, is interrupted, pauses, and completes."""
    ends = {(0, 0): "failed", (1, 0): "interrupted", (2, 0): "paused"}
    while (attempt := queue.next()) is not None:
        ledger.report(attempt, 1, 0.5)
        ledger.write(attempt, "rung:0", 0.5)
        reason = ends.get((attempt.trial, attempt.attempt), "completed")
        ledger.end(attempt, reason, 1.0 if reason == "completed" else None)


class Promotes(Numbered):
    """Continues every paused trial."""

    def next_entry(self, snapshot):
        paused = [snapshot.last(trial) for trial in snapshot.chains if snapshot.state_of(trial) == "paused"]
        return paused[0].successor("paused") if paused else super().next_entry(snapshot)

    def is_done(self, snapshot):
        return super().is_done(snapshot) and not any(snapshot.state_of(trial) == "paused" for trial in snapshot.chains)


def writes_of_script():
    shared = memory()
    ledger, queue = worker(shared, Alive(), source=Promotes(3))
    script(ledger, queue)
    assert queue.is_done()
    assert states(ledger) == ["completed"] * 3
    return ledger.storage.writes


@pytest.mark.parametrize("second", [None, 0, 1, 2, 3, 5])
def test_a_death_at_any_write_loses_no_trial_and_ends_none_twice(second):
    """The second worker may die as well, while it cleans up after the first."""
    count = writes_of_script()
    assert count > 30
    for at in range(count):
        shared, beats = memory(), Alive()
        for name, death in (("one", at), ("two", second), ("three", None)):
            ledger, queue = worker(shared, beats, name, death, Promotes(3))
            try:
                script(ledger, queue)
            except Killed:
                beats.living.discard(name)
        snapshot = ledger.snapshot()
        assert states(ledger) == ["completed"] * 3, f"death before write {at}"
        assert queue.is_done()
        assert not snapshot.unfinished()
        assert all(one.state == "ended" for one in snapshot.attempts)
        for chain in snapshot.chains.values():
            assert [one.ended_as for one in chain].count("completed") == 1
        again = [one for one in snapshot.attempts if one.ended_as == "lost"]
        assert len(again) <= (1 if second is None else 2), "only what the dead ones ran is repeated"


@pytest.mark.parametrize("steps", [1, 2, 3, 100])
def test_a_worker_that_is_taken_for_dead_and_lives_does_no_harm(steps):
    """Before any one of its writes it sleeps, while another worker takes `steps` of its own; then it continues."""
    for at in range(writes_of_script()):
        shared, beats = memory(), Alive()

        def sleep(shared=shared, beats=beats):
            beats.living.discard("one")
            ledger, queue = worker(shared, beats, "two", source=Promotes(3), at=steps)
            try:
                script(ledger, queue)
            except Killed:
                beats.living.discard("two")
            beats.living.add("one")

        ledger, queue = worker(shared, beats, "one", at, Promotes(3), then=sleep)
        while True:
            try:
                script(ledger, queue)
                break
            except LostAttempt:
                pass
        beats.living.clear()
        ledger, queue = worker(shared, beats, "three", source=Promotes(3))
        script(ledger, queue)
        snapshot = ledger.snapshot()
        assert states(ledger) == ["completed"] * 3, f"asleep before write {at}"
        assert queue.is_done()
        assert all(one.state == "ended" for one in snapshot.attempts)
        for chain in snapshot.chains.values():
            assert [one.ended_as for one in chain].count("completed") == 1


@pytest.mark.parametrize("reason", ["failed", "interrupted", "paused", "completed", "stopped"])
def test_an_owner_that_was_taken_for_dead_ends_its_attempt_first(shared, reason):
    """Another worker has added the attempt that was to continue it, and not yet ended it."""
    ledger, queue = worker(shared, Alive(), source=Promotes(1))
    attempt = queue.next()
    ledger.add(attempt.successor("lost"))
    ledger.end(attempt, reason, 1.0 if reason == "completed" else None)
    assert ledger.snapshot().attempts[1].number == 1
    expected = {"completed": ([], "completed"), "stopped": ([], "stopped")}
    assert (list(run_all(queue, ledger)), states(ledger)[0]) == expected.get(reason, ([2], "completed"))
    assert ledger.snapshot().attempts[1].ended_as == "void"
