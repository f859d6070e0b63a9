"""check_logger: built-in loggers pass, and a logger with one defect fails the check of that defect."""

from __future__ import annotations

import re

import pytest

from lightlib.loggers import CSVLogger, DummyLogger, Logger, TensorBoardLogger
from lightlib.testing import check_logger
from lightlib.testing.logger import LoggerKit


class Minimal(Logger):
    """The four abstract members, and nothing else."""

    name, version = "minimal", 0

    def __init__(self, folder):
        self.logged = []

    def log_metrics(self, metrics, step=None):
        self.logged.append((dict(metrics), step))

    def log_hyperparams(self, params, *args, **kwargs):
        self.logged.append(params)


class NumberAsName(Minimal):
    name = 3


class NewVersions(Minimal):
    count = 0

    @property
    def version(self):
        self.count += 1
        return self.count


class NeedsSteps(Minimal):
    def log_metrics(self, metrics, step=None):
        super().log_metrics(metrics, step + 0)


class Pops(Minimal):
    def log_metrics(self, metrics, step=None):
        metrics.pop("epoch", None)


class Strict(Minimal):
    def log_hyperparams(self, params, *args, **kwargs):
        if not isinstance(params, dict):
            raise TypeError("a dict only")


class Forgets(Minimal):
    def log_hyperparams(self, params, *args, **kwargs):
        if isinstance(params, dict):
            params.pop("nothing", None)


class ClosesOnce(Minimal):
    closed = False

    def finalize(self, status):
        if self.closed:
            raise ValueError("closed twice")
        self.closed = True


class NotPlain(Minimal):
    def state_dict(self):
        return {"logger": self}


class NoDictionary(Minimal):
    def state_dict(self):
        return [1]


class CannotResume(Minimal):
    def state_dict(self):
        return {"position": 3}

    def load_state_dict(self, state_dict):
        raise KeyError("offset")


class NoUploads(Minimal):
    def after_save_checkpoint(self, checkpoint_callback):
        raise OSError("no connection")


@pytest.mark.parametrize("make_logger", [CSVLogger, TensorBoardLogger, Minimal, lambda folder: DummyLogger()])
def test_working_loggers_pass(make_logger):
    check_logger(make_logger)


@pytest.mark.parametrize(
    ("broken", "check", "what", "fix"),
    [
        (lambda folder: object(), "members", "make_logger returned <object", "class object(Logger)"),
        (NumberAsName, "members", "NumberAsName.name is 3, a int.", "let the property `name` return str or None"),
        (NewVersions, "members", "NewVersions.version was 1 and is now 2.", "compute `version` once"),
        (NeedsSteps, "metrics", r"NeedsSteps.log_metrics({'loss': -inf}, None) raised TypeError", "in log_metrics"),
        (Pops, "metrics", "Pops.log_metrics changed its argument from {'epoch': 1} to {}.", "copy the mapping"),
        (Strict, "hyperparameters", "Strict.log_hyperparams(Namespace(lr=0.1", "in log_hyperparams"),
        (Forgets, "hyperparameters", "Forgets.log_hyperparams changed its argument", "copy the mapping"),
        (ClosesOnce, "finalizes", "ClosesOnce.finalize('success') raised ValueError: closed twice", "in finalize"),
        (NotPlain, "state", "NotPlain.state_dict() returned {'logger': ", "return plain values"),
        (NoDictionary, "state", "NoDictionary.state_dict() is [1], a list.", "return {} if there is no state"),
        (CannotResume, "state", "CannotResume.load_state_dict({'position': 3}) raised KeyError", "in load_state_dict"),
        (NoUploads, "fits", "NoUploads.after_save_checkpoint ", "the first line names"),
    ],
)
def test_a_broken_logger_is_told_what_failed(broken, check, what, fix):
    with pytest.raises(AssertionError) as caught:
        check_logger(broken)
    text = str(caught.value)
    assert text.startswith(f"The logger fails the check {check!r}: {what}")
    assert re.search(r"\n  Expected: .+\n  Fix: .*", text)
    assert fix in text.rpartition("Fix: ")[2]


def test_every_check_is_described():
    for name in LoggerKit.checks():
        assert f'``"{name}"``' in check_logger.__doc__
