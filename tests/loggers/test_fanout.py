"""Fanout: one logger's failure does not affect the rest."""

from __future__ import annotations

import pytest

from lightlib.loggers import DummyLogger, Fanout
from lightlib.report import LightlibWarning


class Recorder(DummyLogger):
    def __init__(self):
        super().__init__()
        self.calls = []

    def log_metrics(self, metrics, step=None):
        self.calls.append(("log_metrics", dict(metrics), step))

    def log_hyperparams(self, params, *args, **kwargs):
        self.calls.append(("log_hyperparams", params))

    def log_graph(self, model, input_array=None):
        self.calls.append(("log_graph", model, input_array))

    def save(self):
        self.calls.append(("save",))

    def finalize(self, status):
        self.calls.append(("finalize", status))

    def after_save_checkpoint(self, checkpoint_callback):
        self.calls.append(("after_save_checkpoint", checkpoint_callback))


class Broken(DummyLogger):
    error: BaseException = ConnectionError("no route to host")

    def fail(self, *args, **kwargs):
        raise self.error

    log_metrics = log_hyperparams = log_graph = save = finalize = after_save_checkpoint = fail


CALLS = [
    ("log_metrics", {"a": 1.0}, 3),
    ("log_hyperparams", {"lr": 1}),
    ("log_graph", "model", "input"),
    ("save",),
    ("after_save_checkpoint", "callback"),
    ("finalize", "success"),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0])
def test_the_others_still_get_the_call(call):
    before, after = Recorder(), Recorder()
    fanout = Fanout([before, Broken(), after])
    match = rf"Broken\.{call[0]} raised ConnectionError: no route to host\n  Training continues.*called again"
    with pytest.warns(LightlibWarning, match=match) as seen:
        getattr(fanout, call[0])(*call[1:])
    assert before.calls == after.calls == [call]
    assert len(seen) == 1


def test_a_failure_is_reported_once_and_counted():
    first, second = Broken(), Broken()
    first.finalize = second.finalize = lambda status: None
    fanout = Fanout([first, second])
    with pytest.warns(LightlibWarning) as seen:
        fanout.log_metrics({"a": 1.0}, 0)
    assert len(seen) == 2
    fanout.log_metrics({"a": 1.0}, 1)  # a warning would be an error here
    fanout.log_metrics({"a": 1.0}, 2)
    with pytest.warns(LightlibWarning, match=r"Broken\.log_metrics failed 3 times in this run") as seen:
        fanout.finalize("failed")
    assert len(seen) == 2


def test_a_logger_that_recovers_is_used_again():
    class Once(Recorder):
        def log_metrics(self, metrics, step=None):
            if step == 0:
                raise OSError("busy")
            super().log_metrics(metrics, step)

    logger = Once()
    fanout = Fanout([logger])
    with pytest.warns(LightlibWarning, match="busy"):
        fanout.log_metrics({}, 0)
    fanout.log_metrics({}, 1)
    fanout.finalize("success")
    assert logger.calls == [("log_metrics", {}, 1), ("finalize", "success")]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_what_ends_the_process_passes_through(error):
    broken = Broken()
    broken.error = error
    for call in CALLS:
        with pytest.raises(type(error)):
            getattr(Fanout([broken]), call[0])(*call[1:])


def test_no_loggers():
    fanout = Fanout([])
    assert not fanout
    for call in CALLS:
        getattr(fanout, call[0])(*call[1:])


class TestFanout:
    class Counts(DummyLogger):
        def __init__(self):
            super().__init__()
            self.count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state_dict):
            self.count = state_dict["count"]

    class Broken(Counts):
        def state_dict(self):
            raise OSError("no")

        load_state_dict = start_anew = state_dict

    def test_by_class_and_place(self):
        one, two = self.Counts(), self.Counts()
        one.count, two.count = 1, 2
        states = Fanout([one, DummyLogger(), two]).state_dict()
        assert states == [
            {"logger": "Counts", "state": {"count": 1}},
            {"logger": "DummyLogger", "state": {}},
            {"logger": "Counts", "state": {"count": 2}},
        ]
        again = [DummyLogger(), self.Counts(), self.Counts(), self.Counts()]
        Fanout(again).load_state_dict(states)
        assert [logger.count for logger in again[1:]] == [1, 2, 0]

    @pytest.mark.parametrize("states", [None, [], [3], [{"logger": "Counts"}], [{"logger": "Counts", "state": {}}]])
    def test_nothing_to_go_on_with(self, states):
        logger = self.Counts()
        Fanout([logger]).load_state_dict(states)
        assert logger.count == 0

    def test_a_logger_that_fails_ends_nothing(self):
        counts = self.Counts()
        fanout = Fanout([self.Broken(), counts])
        with pytest.warns(LightlibWarning, match=r"Broken.state_dict raised OSError: no"):
            states = fanout.state_dict()
        states[0]["state"], states[1]["state"]["count"] = {"count": 3}, 4
        with pytest.warns(LightlibWarning, match=r"Broken.load_state_dict raised"):
            fanout.load_state_dict(states)
        with pytest.warns(LightlibWarning, match=r"Broken.start_anew raised"):
            fanout.start_anew()
        assert counts.count == 4
