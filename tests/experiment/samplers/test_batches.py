"""Synchronous searches by a sampler: the same trials with any workers, orders and deaths."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.samplers import Sampled
from lightlib.experiment.searchers.brackets import Bracket
from lightlib.experiment.searchers.halving import Halving
from lightlib.experiment.searchers.plain import Plain
from lightlib.experiment.space import Space
from tests.experiment.searchers.sampling import MIXED, PLANE, SEED, PlainLoop, bowl, bumpy, ledger_of, plane
from tests.experiment.searchers.test_halving import script
from tests.experiment.stores import Alive, Killed, memory, worker

TRIALS, BATCH = 14, 4
OPTIONS = {"tpe": {"n_startup_trials": 4}, "nsga2": {"population_size": 4}, "cmaes": {}}


def is_invalid(values):
    return values["y"] > 0.6


def parameters(ledger):
    return [chain[0].params for chain in ledger.snapshot().chains.values()]


def shuffled(new, order, trials=TRIALS, tree=PLANE, function=bowl):
    """Run a search in which creations, ends and deaths come in a random order; return the parameters of its trials."""
    space, source, ledger = Space(tree), Plain(trials, BATCH, new), ledger_of()
    while not (source.is_done(ledger.snapshot()) and not ledger.snapshot().unfinished()):
        snapshot = ledger.snapshot()
        unfinished = snapshot.unfinished()
        if order.random() < 0.5 and (entry := source.next_entry(snapshot)) is not None:
            for _ in range(order.choice((0, 1, 1, 2))):  # a worker dies, one adds it, two add it at once
                ledger.add(entry)
        elif unfinished:
            attempt = snapshot.last(order.choice(unfinished))
            assert ledger.claim(attempt, {"name": "one"})
            values = space.values(attempt.params)
            if order.random() < 0.2:
                ledger.end(attempt, "interrupted")
            elif tree is PLANE and is_invalid(values):
                ledger.end(attempt, "invalid")
            else:
                ledger.end(attempt, "completed", function(values))
    return parameters(ledger)


@pytest.mark.parametrize("name", OPTIONS)
def test_any_order_gives_the_same_trials(name):
    if name == "cmaes":
        pytest.importorskip("cmaes")
    new = Sampled(name, Space(PLANE), SEED, OPTIONS[name], batch=BATCH)
    found = [shuffled(new, random.Random(order)) for order in range(4)]
    assert all(one == found[0] for one in found)
    invalid = sum(is_invalid(one) for one in found[0])
    assert 0 < invalid == len(found[0]) - TRIALS


def test_any_order_gives_the_same_trials_without_repeated_points():
    tree = {key: MIXED[key] for key in ("depth", "kind")} | {"lr": 0.01}
    new = Sampled("tpe", Space(tree), SEED, OPTIONS["tpe"], skips=True, batch=BATCH)
    found = [shuffled(new, random.Random(order), 15, tree, bumpy) for order in range(4)]
    assert all(one == found[0] for one in found)
    assert len({(one["depth"], one["kind"]) for one in found[0]}) == 15


def test_a_batch_is_drawn_before_its_values_are_there():
    loop, wanted = PlainLoop("tpe", OPTIONS["tpe"]), []
    for _ in range(5):
        batch = [loop.ask(plane) for _ in range(BATCH)]
        for number, values in enumerate(batch, len(wanted)):
            loop.study.tell(loop.trials[number], bowl(values))
        wanted += batch
    new = Sampled("tpe", Space(PLANE), SEED, OPTIONS["tpe"], batch=BATCH)
    space, source, ledger = Space(PLANE), Plain(20, BATCH, new), ledger_of()
    while (entry := source.next_entry(ledger.snapshot())) is not None:
        ledger.add(entry)
        snapshot = ledger.snapshot()
        if len(snapshot.unfinished()) == BATCH:
            for trial in reversed(snapshot.unfinished()):
                attempt = snapshot.last(trial)
                assert ledger.claim(attempt, {"name": "one"})
                ledger.end(attempt, "completed", bowl(space.values(attempt.params)))
    assert parameters(ledger) == wanted


BRACKETS = [Bracket((1, 2, 4), 8, 2), Bracket((2, 4), 4, 1)]


def halving(rule, batch):
    first = (1, 2) if batch else ()
    new = Sampled("tpe", Space(PLANE), SEED, {"n_startup_trials": 3}, batch=batch, first_rungs=first)
    return Halving(BRACKETS, 2, new, rule)


def rung_score(ledger):
    """The metric at a length: the value of the point, and less with more training."""
    space = Space(PLANE)
    return lambda trial, length: bowl(space.values(ledger.snapshot().chains[trial][0].params)) + 1 / length


def halved(source, deaths=()):
    shared, beats = memory(), Alive()
    for name, death in enumerate((*deaths, None)):
        ledger, queue = worker(shared, beats, str(name), death, source)
        try:
            script(ledger, queue, source, rung_score(ledger))
        except Killed:
            beats.living.discard(str(name))
    assert queue.is_done()
    return ledger


@pytest.mark.parametrize("rule", ["stopping", "promoting"])
def test_a_sampler_draws_the_trials_of_brackets(rule):
    """They are stopped at rungs; points that were learned are better than those of chance."""
    ledger = halved(halving(rule, None))
    snapshot = ledger.snapshot()
    assert snapshot.trials == 12
    states = [snapshot.state_of(trial) for trial in snapshot.chains]
    assert {"completed", "stopped" if rule == "stopping" else "paused"} == set(states)
    found = [bowl(one) for one in parameters(ledger)]
    assert sum(found[3:]) / 9 < sum(found[:3]) / 3


def test_synchronous_brackets_have_the_same_trials_after_any_death():
    source = halving("synchronous", 3)
    wanted = halved(source)
    writes = wanted.storage.writes
    states = [wanted.snapshot().state_of(trial) for trial in wanted.snapshot().chains]
    assert len(parameters(wanted)) == 12
    for at in range(0, writes, 7):
        ledger = halved(source, (at, at % 11))
        assert parameters(ledger) == parameters(wanted), at
        assert [ledger.snapshot().state_of(trial) for trial in ledger.snapshot().chains] == states, at
