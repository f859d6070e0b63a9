"""Searchers of the user's own: no kill loses or repeats a trial or an event, and mistakes are named."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

pytest.importorskip("optuna")

from lightlib.errors import MisconfigurationException
from lightlib.experiment import Continue, Create, Pause, Searcher, Shutdown, Stop
from lightlib.experiment.file import read
from lightlib.experiment.ledger.ledger import Ledger, LostAttempt
from lightlib.experiment.ledger.queue import Queue
from lightlib.experiment.searchers.custom import Custom, Turn, reach
from lightlib.experiment.space import Space
from lightlib.experiment.work.custom import Calls, CustomDecisions, SearcherSource
from tests.experiment.stores import Alive, Killed, Mortal, memory

LENGTH, TRIALS = 4, 4
SPACE = {"lr": {"type": "log", "minval": -4, "maxval": -1}, "layers": {"type": "int", "minval": 1, "maxval": 9}}


def metric(trial, step):
    return ((trial * 7 + 3) % 11) / (step + 1)


class Halves(Searcher):
    """Trains all trials to 1, the better half of them to 2, and the better half of these to the end."""

    def __init__(self, stops=True):
        self.stops, self.values, self.events = stops, {}, []

    def initial_trials(self):
        return [Create({"layers": one + 1}, until=1) for one in range(TRIALS)]

    def trial_created(self, trial):
        self.events.append([trial.number, "created"])

    def validated(self, trial, step, metrics):
        self.events.append([trial.number, step, metrics["loss"]])
        rung = self.values.setdefault(str(step), {})
        rung[str(trial.number)] = metrics["loss"]
        if step > 2 or len(rung) < TRIALS // step:
            return
        best = sorted(rung, key=rung.get)[: len(rung) // 2]
        yield from (Continue(int(one), until=2 if step == 1 else None) for one in best)
        if self.stops:
            yield from (Stop(int(one)) for one in rung if one not in best)

    def ended(self, trial):
        self.events.append([trial.number, "ended"])

    def ended_early(self, trial, reason):
        self.events.append([trial.number, reason])


def plain():
    """The length of each trial, computed without any of it."""
    order = sorted(range(TRIALS), key=lambda one: metric(one, 1))
    second = sorted(order[: TRIALS // 2], key=lambda one: metric(one, 2))
    return {one: LENGTH if one == second[0] else 2 if one in second else 1 for one in range(TRIALS)}


def config(kind="Halves", **more):
    searcher = {"class_path": f"{__name__}.{kind}", "metric": "loss", "max_length": {"epochs": LENGTH}, **more}
    fit, seed = {"trainer": {}}, {"experiment_seed": 3}
    return read({"name": "a", "fit": fit, "hyperparameters": SPACE, "searcher": searcher, "reproducibility": seed})


class Worker:
    """A worker that trains in no time, and dies at a chosen write."""

    def __init__(self, storage, beats, path, name, at=None, settings=None):
        settings, owner = settings or config(), {"name": name}
        space = Space(settings.hyperparameters)
        beats.living.add(name)
        self.storage = Mortal(storage, at)
        self.ledger = Ledger(self.storage, "experiment")
        self.source = Custom(self.ledger, 2, space.distributions(), LENGTH)
        self.queue = Queue(self.ledger, beats, self.source, owner)
        of_searcher = Queue(self.ledger.of_searcher(), beats, SearcherSource(), owner)
        self.decisions = CustomDecisions(partial(Calls, settings, path, space), self.ledger, beats, of_searcher)

    def run(self, fails=()):
        for _ in range(200):
            self.decisions.look()
            attempt = self.queue.next()
            if attempt is not None:
                self.train(attempt, fails)
            elif self.queue.is_done():
                self.decisions.close()
                return
        raise AssertionError("the search does not end")

    def train(self, attempt, fails):
        decided = self.decisions.request(attempt.trial)
        if decided is not None or attempt.trial in fails:
            self.ledger.end(attempt, decided or "failed", again=False)
            return
        chain, (until, *_) = self.ledger.snapshot().chains[attempt.trial], self.source.lengths(attempt)
        for step in range(max((step for one in chain for step in one.reports), default=0) + 1, until + 1):
            self.ledger.report(attempt, step, metric(attempt.trial, step))
        if until == LENGTH:
            self.ledger.end(attempt, "completed", metric(attempt.trial, LENGTH))
            return
        reach(self.ledger, attempt)
        one = SimpleNamespace(attempt=attempt, decided=True)
        self.ledger.end(attempt, self.decisions.ended(one, "interrupted", None))


def found(ledger):
    snapshot = ledger.snapshot()
    return {trial: max(step for one in chain for step in one.reports) for trial, chain in snapshot.chains.items()}


def test_trials_pause_continue_and_stop_as_the_searcher_has_it(tmp_path):
    worker = Worker(memory(), Alive(), tmp_path, "one")
    worker.run()
    snapshot = worker.ledger.snapshot()
    assert found(worker.ledger) == plain()
    ends = {trial: "completed" if length == LENGTH else "stopped" for trial, length in plain().items()}
    assert {trial: snapshot.state_of(trial).replace("paused", "stopped") for trial in ends} == ends
    numbers = {trial: Space(SPACE).values(chain[0].params) for trial, chain in snapshot.chains.items()}
    assert [one["layers"] for one in numbers.values()] == [1, 2, 3, 4]
    assert [one["lr"] for one in numbers.values()] == [Space(SPACE).sample_trial(3, trial)["lr"] for trial in ends]


@pytest.mark.parametrize("stops", [True, False])
def test_a_kill_at_any_write_loses_and_repeats_nothing(tmp_path, stops):
    settings, at = config(init_args={"stops": stops}), 0
    while True:
        storage, beats = memory(), Alive()
        first = Worker(storage, beats, tmp_path, "one", at, settings)
        killed = False
        try:
            first.run()
        except Killed:
            killed = True
            beats.living.remove("one")
            Worker(storage, beats, tmp_path, "two", settings=settings).run()
        ledger = Ledger(storage, "experiment")
        assert found(ledger) == plain(), at
        steps = [[one, step, metric(one, step)] for one, end in plain().items() for step in range(1, end + 1)]
        created = [[one, "created"] for one in range(TRIALS)]
        ended = [[one, "ended"] for one, end in plain().items() if stops or end == LENGTH]
        assert sorted(map(str, Turn.last(ledger).state["events"])) == sorted(map(str, steps + created + ended)), at
        if not killed:
            return
        at += 1


def test_a_worker_that_was_taken_for_dead_cannot_decide(tmp_path):
    storage, beats = memory(), Alive()
    one, two = (Worker(storage, beats, tmp_path, name) for name in ("one", "two"))
    one.decisions.look()
    two.decisions.look()
    assert Turn.last(two.ledger).trials[0].created is False
    beats.living.remove("one")
    two.run()
    before = Turn.last(two.ledger)
    with pytest.raises(LostAttempt):
        before.write(one.ledger, one.decisions._here[0])
    one.decisions.look()
    assert Turn.last(two.ledger) == before
    assert one.decisions._turn == before


def test_a_trial_that_fails_is_an_event(tmp_path):
    worker = Worker(memory(), Alive(), tmp_path, "one")
    worker.run(fails=[2])
    assert [2, "errored"] in Turn.last(worker.ledger).state["events"]
    assert worker.ledger.snapshot().state_of(2) == "errored"


class Ends(Halves):
    def validated(self, trial, step, metrics):
        return [Shutdown()]


def test_shutdown_ends_the_search(tmp_path):
    worker = Worker(memory(), Alive(), tmp_path, "one", settings=config("Ends"))
    worker.run()
    assert found(worker.ledger).keys() <= {0, 1}
    assert Turn.last(worker.ledger).over


class Given(Searcher):
    """Returns its actions."""

    given = None

    def initial_trials(self):
        return type(self).given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], r"Given: initial_trials\(\) created no trial"),
        ([3], "returned 3 .*, which is no action"),
        (3, "initial_trials raised TypeError: 'int' object is not iterable"),
        ([Create({"lr": 5})], "returned Create.*'lr' is 5 .*not in its space"),
        ([Create({"lrr": 5})], "'lrr'.*Did you mean 'lr'"),
        ([Create({"layers": 2.5})], "'layers' is 2.5"),
        ([Create(until=9)], r"until=9 .*\n.*an int from 1 to 4"),
        ([Create(), Stop(1)], r"Stop\(trial=1\) names no trial"),
        ([Create(), Pause(-1)], "names no trial"),
        ([Create(), Continue("a")], "names no trial"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, monkeypatch, given, message):
    monkeypatch.setattr(Given, "given", given)
    settings = config("Given")
    with pytest.raises(MisconfigurationException, match=message) as error:
        Calls(settings, tmp_path, Space(settings.hyperparameters)).first()
    assert str(error.value).count("Expected:") == str(error.value).count("Fix:") == 1


class Keeps(Given):
    kept = None

    def __init__(self):
        self.some = type(self).kept


@pytest.mark.parametrize("kept", [{1: 2}, (1, 2), {1, 2}, float("nan"), object()])
def test_a_state_that_json_does_not_keep_is_refused(tmp_path, monkeypatch, kept):
    monkeypatch.setattr(Given, "given", [Create()])
    monkeypatch.setattr(Keeps, "kept", kept)
    settings = config("Keeps")
    with pytest.raises(MisconfigurationException, match=r"state_dict\(\) returned what JSON does not keep"):
        Calls(settings, tmp_path, Space(settings.hyperparameters)).first()


@pytest.mark.parametrize(
    ("path", "more", "message"),
    [
        ("absent.Searcher", {}, "'absent.Searcher' cannot be imported: ModuleNotFoundError"),
        (f"{__name__}.metric", {}, "which is no Searcher"),
        (f"{__name__}.Halves", {"init_args": {"stop": 1}}, "__init__ raised TypeError: .*'stop'"),
        ("lightlib.experiment.Searcher", {}, "__init__ raised TypeError: .*abstract"),
    ],
)
def test_a_class_that_is_no_searcher_is_refused(tmp_path, path, more, message):
    settings = config(class_path=path, **more)
    with pytest.raises(MisconfigurationException, match=message):
        Calls(settings, tmp_path, Space(settings.hyperparameters))


def test_numbers_are_the_inverse_of_values():
    space = Space(
        {
            "rate": {"type": "log", "minval": -4, "maxval": -1},
            "width": {"type": "log_int", "minval": 4, "maxval": 8, "base": 2},
            "drop": {"type": "double", "minval": 0, "maxval": 0.5, "step": 0.1},
            "kind": {"type": "categorical", "vals": ["a", True, 1, [2]]},
            "depth": {"type": "int", "minval": 1, "maxval": 9, "when": {"kind": "a"}},
            "same": 3,
        }
    )
    for values in (
        {"rate": 1e-4, "width": 100, "drop": 0.3, "kind": 1, "same": 3},
        {"rate": 0.037, "width": 256, "drop": 0, "kind": "a", "depth": 9, "same": 3},
    ):
        again = space.values(space.numbers(values, rest={}))
        assert again == {**values, "rate": pytest.approx(values["rate"], rel=1e-12)}
        assert type(again["kind"]) is type(values["kind"])
    with pytest.raises(MisconfigurationException, match="'depth' has a value, and does not exist"):
        space.numbers({"kind": 1, "depth": 3}, rest={"rate": -2, "width": 5, "drop": 0})
