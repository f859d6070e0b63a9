"""The end of a trial, by the exit code of its process."""

from __future__ import annotations

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.job import Job
from lightlib.experiment.work.trial import TrialHere


class Ended:
    """A process that has ended with a code."""

    def __init__(self, code):
        self.code = code

    def exit_code(self):
        return self.code

    def clear(self):
        pass

    def send_signal(self, number):
        pass


class Log:
    def join(self, timeout):
        pass

    def tail(self):
        return ["first", "the reason", ""]


@pytest.mark.parametrize(
    ("code", "command", "stopped", "reason", "text"),
    [
        (None, (), True, None, None),
        (0, (), False, "completed", ""),
        (0, (), True, "completed", ""),  # the fit was at its end
        (0, ("python3",), True, "interrupted", ""),  # the program saw `should_stop`
        (143, (), True, "interrupted", ""),
        (143, (), False, "failed", "ended with exit code 143: the reason"),  # else it could start again for ever
        (-9, (), False, "failed", "was killed by SIGKILL (often: out of memory)"),
        (3, (), False, "failed", "ended with exit code 3: the reason"),
    ],
)
def test_how_a_trial_has_ended(code, command, stopped, reason, text):
    job = Job(0, 0, "", "", {}, "val_loss", command=command)
    trial = TrialHere(None, job, Ended(code), (), Log())
    if stopped:
        trial.interrupt()
    end = trial.end()
    assert (end and end.reason, end and end.text) == (reason, text)
