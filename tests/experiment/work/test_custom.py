"""A searcher of the user's own stops, pauses and continues trials, also after a kill of everything."""

from __future__ import annotations

import os
import signal

import pytest
import torch

pytest.importorskip("optuna")

from lightlib.experiment.space import Space, trial_seed
from tests.experiment.work.project import Project, trained, until

pytestmark = pytest.mark.processes
SEARCHER = '''
from lightlib.experiment import Continue, Create, Searcher, Stop


class Half(Searcher):
    """Trains trials for an epoch, and the better half of them to the end."""

    def __init__(self, trials):
        self.trials, self.losses = trials, {}

    def initial_trials(self):
        return [Create(until=1) for _ in range(self.trials)]

    def validated(self, trial, step, metrics):
        if len(self.losses) == self.trials:
            return
        self.losses[str(trial.number)] = metrics["val_loss"]
        if len(self.losses) == self.trials:
            order = sorted(self.losses, key=self.losses.get)
            yield from (Continue(int(one)) for one in order[: self.trials // 2])
            yield from (Stop(int(one)) for one in order[self.trials // 2 :])
'''
SEARCH = """
fit: {model: {init_args: {holds_at: [6]}}}
searcher: {class_path: half.Half, init_args: {trials: 4}, metric: val_loss, max_length: {epochs: 3}}
"""


def test_a_kill_changes_nothing_of_a_search_of_the_users_own(tmp_path):
    project = Project(tmp_path, SEARCH)
    (project.folder / "half.py").write_text(SEARCHER)
    killed = project.start("experiment", "run", "search.yaml", "--slots", "2")
    until(lambda: project.held() or killed.poll() is not None)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=300)
    (project.folder / "half.py").unlink()  # its copy is used
    project.let_go()
    printed = project.run()
    space = Space({"lr": {"type": "log", "minval": -3, "maxval": -1}})
    rates = [space.sample_trial(7, trial)["lr"] for trial in range(4)]
    losses = [trained(lr, trial_seed(7, trial), 1)[1][0] for trial, lr in enumerate(rates)]
    best = sorted(range(4), key=losses.__getitem__)[:2]
    trials = project.trials()
    assert [one.hparams["lr"] for one in trials] == rates
    assert [one.state for one in trials] == ["completed" if one in best else "stopped" for one in range(4)]
    for one in trials:
        weights, losses = trained(one.hparams["lr"], trial_seed(7, one.number), 3 if one.number in best else 1)
        assert one.metric == min(losses)
        assert all(torch.equal(project.weights(one.number)[name], value) for name, value in weights.items())
        validated = [message["step"] for message in project.messages(one.number, "validated")]
        assert validated == [4, 8, 12][: len(losses)], "no validation is repeated"
    assert "2 completed, 2 stopped" in printed
