"""The validation of a trial that counts, over its attempts."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("optuna")

from lightlib.errors import MisconfigurationException
from lightlib.experiment.current import CurrentTrial
from lightlib.experiment.job import Job
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.messages import Messages
from lightlib.experiment.samplers import Sampled
from lightlib.experiment.searchers.values import value_of
from lightlib.experiment.space import Space
from tests.experiment.searchers.sampling import PLANE, SEED, add, ledger_of
from tests.experiment.stores import Killed, Mortal

TWO = ("minimize", "maximize")


def begun(directions):
    ledger = ledger_of(directions)
    return ledger, add(ledger, Sampled("nsga2", Space(PLANE), SEED, {}, directions), 0)


def continued(ledger, attempt):
    ledger.end(attempt, "interrupted")
    following = ledger.snapshot().last(0)
    assert ledger.claim(following, {"name": "two"})
    return following


@pytest.mark.parametrize(("smaller", "wanted"), [(True, (8, (0.2,))), (False, (12, (0.4,)))])
def test_one_metric_counts_where_it_is_best(smaller, wanted):
    ledger, attempt = begun(("minimize",))
    ledger.report(attempt, 4, 0.3)
    ledger.report(attempt, 8, 0.2)
    attempt = continued(ledger, attempt)
    ledger.report(attempt, 12, 0.4)
    ledger.report(attempt, 16, math.inf if smaller else -math.inf)
    assert value_of(ledger.snapshot().chains[0], [smaller]) == wanted


def test_several_metrics_count_where_they_are_last():
    ledger, attempt = begun(TWO)
    assert value_of(ledger.snapshot().chains[0], [True, False]) is None
    ledger.report(attempt, 4, 0.1, 0.9)
    ledger.report(attempt, 12, math.inf, 0.3)
    attempt = continued(ledger, attempt)
    ledger.report(attempt, 8, 0.2, 0.8)
    value = value_of(ledger.snapshot().chains[0], [True, False])
    assert value == (12, (math.inf, 0.3))
    ledger.end(attempt, "completed", list(value.metrics))
    assert list(ledger.snapshot().last(0).values) == [math.inf, 0.3]


def test_a_death_within_a_report_leaves_none_behind():
    """The report is repeated by the worker that continues the trial, because its step is not there."""
    ledger, attempt = begun(TWO)
    mortal = Ledger(Mortal(ledger.storage, at=1), "experiment", TWO)
    with pytest.raises(Killed):
        mortal.report(attempt, 4, 0.1, 0.9)
    assert ledger.fresh(attempt.id).metrics == {}
    ledger.report(attempt, 4, 0.1, 0.9)
    assert ledger.fresh(attempt.id).metrics == {4: (0.1, 0.9)}


def test_a_program_reports_all_metrics(tmp_path):
    job = Job(0, 0, str(tmp_path), "", {}, "loss", more_metrics=("size",))
    assert Job.from_json(job.as_json()) == job
    trial = CurrentTrial(job, Messages(tmp_path))
    trial.report(4, loss=0.5, size=3)
    with pytest.raises(MisconfigurationException, match="The searcher's metric is 'size'; reported were: loss"):
        trial.report(8, loss=0.5)
    kinds = [(one["kind"], one.get("metrics")) for one in Messages(tmp_path).new()]
    assert kinds == [("validated", {"loss": 0.5, "size": 3.0}), ("unlogged", None)]
