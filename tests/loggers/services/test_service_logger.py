"""Services that are slow, unreachable or raise: training continues, and no call waits for them."""

from __future__ import annotations

import pickle
import sys
import threading
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from lightlib import registry
from lightlib.core.trainer import Trainer
from lightlib.errors import LoggingError, MisconfigurationException
from lightlib.loggers import AimLogger, ClearMLLogger, DVCLiveLogger, TrackioLogger
from lightlib.loggers.background_calls import BackgroundCalls
from lightlib.loggers.media import Audio, Figure, Histogram, Image, Table, Text
from lightlib.loggers.services.service_logger import ServiceLogger
from lightlib.report import LightlibWarning, rank_zero_only
from lightlib.testing import check_logger
from tests.runs.modules import LogsLoss
from tests.runs.plain import QUIET, loader


class Recorded(ServiceLogger):
    """Records the calls of its client; `answers` is called before each."""

    name, version = "recorded", "one"

    def __init__(self, answers=lambda: None):
        super().__init__()
        self.answers, self.seen, self.opened = answers, [], 0

    def _check(self):
        pass

    def _open(self):
        self.answers()
        self.opened += 1
        return "client"

    def _note(self, *call):
        self.answers()
        self.seen.append(call)

    def _metrics(self, client, metrics, step):
        self._note(client, metrics, step)

    def _hyperparameters(self, client, params):
        self._note(client, params)

    def _close(self, client, status):
        self._note(client, status)


@pytest.fixture
def patience(monkeypatch):
    """Wait hardly at all, so that tests of a service that does not answer take no second."""
    for module in ("background_calls", "services.service_logger"):
        monkeypatch.setattr(f"lightlib.loggers.{module}.PATIENCE", 0.001)


def fit(logger):
    module = LogsLoss()
    Trainer(**{**QUIET, "logger": logger}, max_epochs=1, log_every_n_steps=1).fit(module, loader(20))
    return module


def test_values_arrive_in_their_order():
    logger = Recorded()
    fit(logger)
    assert logger.wait()
    *metrics, end = logger.seen
    assert end == ("client", "success")
    assert [call[2] for call in metrics] == [1, 2, 3, 4, 5]
    assert logger.opened == 1


def test_a_service_that_never_answers_does_not_hold_up_training(patience):
    """The test would hang if any call waited for the service."""
    answer = threading.Event()
    logger = Recorded(answer.wait)
    with pytest.warns(LightlibWarning, match=r"Recorded: the service has not answered \d calls yet") as caught:
        module = fit(logger)
    assert len(caught) == 1
    assert module.trainer.global_step == 5
    assert logger.seen == []
    answer.set()
    assert logger.wait()
    assert [call[2] for call in logger.seen if len(call) == 3] == [1, 2, 3, 4, 5]


def test_an_unreachable_service_is_reported_once():
    def refuse():
        raise ConnectionError("no route to host")

    logger, other = Recorded(refuse), Recorded()
    with pytest.warns(LightlibWarning) as caught:
        module = fit([logger, other])
    assert module.trainer.global_step == 5
    firsts = [text for text in (str(warning.message) for warning in caught) if "raised ConnectionError" in text]
    assert len({text.split(" raised")[0] for text in firsts}) == len(firsts), "each method once"
    assert other.wait()
    assert len(other.seen) == 6


def test_an_error_of_the_service_is_raised_by_the_next_call():
    calls, seen = BackgroundCalls("test"), []

    def fail():
        raise OSError("broken pipe")

    calls.add(fail)
    assert calls.wait(None)
    with pytest.raises(OSError, match="broken pipe"):
        calls.add(lambda: seen.append(1))
    assert calls.wait(None)
    calls.check()
    assert seen == [1]


def test_calls_are_refused_when_too_many_wait():
    answer, calls = threading.Event(), BackgroundCalls("Slow", most=2)
    for _ in range(2):
        calls.add(answer.wait)
    with pytest.raises(LoggingError, match=r"Slow has 2 calls that its service has not answered"):
        calls.add(answer.wait)
    assert not calls.wait(0.0)
    answer.set()
    assert calls.wait(None)
    assert calls.num_waiting == 0


def test_it_conforms():
    class Quiet(Recorded):
        pass

    check_logger(lambda folder: Quiet())


def test_other_ranks_do_nothing(monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = Recorded()
    logger.prepare()
    logger.log_metrics({"x": 1.0}, 0)
    logger.finalize("success")
    assert (logger.seen, logger.opened) == ([], 0)
    assert logger.experiment.anything() is None


def test_it_can_be_pickled():
    logger = TrackioLogger("p", "n")
    again = pickle.loads(pickle.dumps(logger))
    assert (again.version, again.wait(0.0)) == ("n", True)


@pytest.mark.parametrize(
    ("kind", "package"),
    [(TrackioLogger, "trackio"), (DVCLiveLogger, "dvclive"), (ClearMLLogger, "clearml"), (AimLogger, "aim")],
)
def test_a_missing_package_is_named_before_training(kind, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    pattern = rf"{kind.__name__} needs the package {package},(.|\n)*pip install '{package}>="
    with pytest.raises(MisconfigurationException, match=pattern):
        fit(kind())
    assert registry.get("loggers", package) is kind


ITEMS = [
    Image(torch.zeros(1, 2, 3)),
    Table(["c"], [[1]]),
    Text("t"),
    Histogram([0.0, 1.0], bins=2),
    Audio([0.5], 8000),
    Figure(SimpleNamespace(savefig=lambda file, **options: file.write(Image(torch.zeros(1, 2, 3)).encoded()))),
]


def log_all(logger):
    logger.prepare()
    logger.log_hyperparams({"lr": 0.1, "api_key": "s"})
    logger.log_metrics({"train/loss": 0.5}, 3)
    for item in ITEMS:
        if isinstance(item, logger.media_kinds):
            logger.log_media("a/b", item, 4)
    logger.finalize("failed")
    assert logger.wait()


@pytest.fixture
def stand_in(monkeypatch):
    """Return a function that puts a stand-in in the place of a package."""

    def put(name):
        module = ModuleType(name)
        for each in ("init", "Image", "Table", "Markdown", "Live", "Task", "Run", "Audio", "Distribution", "Text"):
            setattr(module, each, MagicMock(name=each))
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return put


def test_the_calls_of_trackio(stand_in):
    module = stand_in("trackio")
    client = module.init.return_value
    client.config = {}
    logger = TrackioLogger("p", prefix="x", group="g")
    log_all(logger)
    module.init.assert_called_once_with(project="p", name=logger.version, resume="allow", embed=False, group="g")
    assert client.config == {"lr": 0.1, "api_key": "***"}
    first, image, *_ = [(call.args[0], call.kwargs) for call in client.log.call_args_list]
    assert first == ({"x-train/loss": 0.5}, {"step": 3})
    assert image == ({"a/b": module.Image.return_value}, {"step": 4})
    assert len(client.log.call_args_list) == 4
    client.finish.assert_called_once_with()
    state = logger.state_dict()
    again, chosen = TrackioLogger("p"), TrackioLogger("p", "mine")
    for each in (again, chosen):
        each.load_state_dict(state)
    assert (again.version, chosen.version) == (logger.version, "mine")


def test_the_calls_of_dvclive(stand_in, tmp_path):
    module = stand_in("dvclive")
    client = module.Live.return_value
    logger = DVCLiveLogger("name", dir=tmp_path / "a", report="html")
    log_all(logger)
    module.Live.assert_called_once_with(dir=str(tmp_path / "a"), resume=False, exp_name="name", report="html")
    client.log_params.assert_called_once_with({"lr": 0.1, "api_key": "***"})
    client.log_metric.assert_called_once_with("train/loss", 0.5)
    assert client.step == 3
    assert client.log_image.call_args.args[0] == "a/b/00000004.png"
    client.end.assert_called_once_with()


def test_the_calls_of_clearml(stand_in):
    module = stand_in("clearml")
    task = module.Task.init.return_value
    task.id = "id"
    logger = ClearMLLogger("p", "n", tags=["t"])
    log_all(logger)
    arguments = module.Task.init.call_args.kwargs
    assert {name: arguments[name] for name in ("project_name", "task_name", "tags", "continue_last_task")} == {
        "project_name": "p",
        "task_name": "n",
        "tags": ["t"],
        "continue_last_task": False,
    }
    task.connect.assert_called_once_with({"lr": 0.1, "api_key": "***"}, name="hyperparameters")
    client = task.get_logger.return_value
    client.report_scalar.assert_called_once_with("train", "loss", value=0.5, iteration=3)
    assert client.report_histogram.call_args.kwargs["values"] == [1, 1]
    assert client.report_table.call_args.kwargs["table_plot"] == [["c"], ["1"]]
    assert [call.kwargs["file_extension"] for call in client.report_media.call_args_list] == [".wav", ".png"]
    client.report_text.assert_called_once_with("a/b: t", print_console=False)
    assert client.report_image.call_args.args == ("a", "b")
    task.mark_failed.assert_called_once()
    task.close.assert_called_once_with()
    again = ClearMLLogger("p")
    again.load_state_dict(logger.state_dict())
    log_all(again)
    assert module.Task.init.call_args.kwargs["continue_last_task"] == "id"
    module.Task.set_offline.assert_not_called()


def test_the_calls_of_aim(stand_in):
    module = stand_in("aim")
    run = module.Run.return_value
    run.hash = "hash"
    logger = AimLogger("repo", "digits", "first", log_system_params=True)
    log_all(logger)
    quiet = {"system_tracking_interval": None, "capture_terminal_logs": False}
    module.Run.assert_called_once_with(
        None, repo="repo", experiment="digits", force_resume=False, log_system_params=True, **quiet
    )
    assert run.name == "first"
    assert [call.args for call in run.set.call_args_list] == [(("hparams", "lr"), 0.1), (("hparams", "api_key"), "***")]
    first, *media = [(call.args[0], call.kwargs) for call in run.track.call_args_list]
    assert first == (0.5, {"name": "train/loss", "step": 3})
    _, text, histogram, audio, _ = media
    assert text == (module.Text.return_value, {"name": "a/b", "step": 4})
    assert histogram[0] is module.Distribution.return_value
    module.Distribution.assert_called_once_with(hist=[1, 1], bin_range=(0.0, 1.0))
    assert audio[0] is module.Audio.return_value
    assert [call.args[0].size for call in module.Image.call_args_list] == [(3, 2), (3, 2)]
    run.report_successful_finish.assert_not_called()
    run.close.assert_called_once_with()
    again, chosen = AimLogger(), AimLogger(run_hash="mine")
    for each in (again, chosen):
        each.load_state_dict(logger.state_dict())
    assert (again.version, chosen.version) == ("hash", "mine")
    log_all(again)
    assert module.Run.call_args.args == ("hash",)
    assert module.Run.call_args.kwargs["force_resume"]


SERVICES = [(AimLogger, "aim", "Run"), (ClearMLLogger, "clearml", "Task"), (DVCLiveLogger, "dvclive", "Live")]
SERVICES += [(TrackioLogger, "trackio", "init")]


def opens_by(module, name, effect):
    """Let the call that opens a run of the service have this effect."""
    (module.Task.init if name == "Task" else getattr(module, name)).side_effect = effect


@pytest.mark.parametrize(("kind", "package", "name"), SERVICES)
def test_training_goes_on_without_each_service(kind, package, name, stand_in):
    def refuse(*args, **kwargs):
        raise ConnectionError("no route to host")

    opens_by(stand_in(package), name, refuse)
    with pytest.warns(LightlibWarning) as caught:
        module = fit(kind())
    assert module.trainer.global_step == 5
    texts = [str(warning.message) for warning in caught]
    firsts = [text.split(" raised")[0] for text in texts if "raised ConnectionError: no route" in text]
    assert any(first.startswith(kind.__name__) for first in firsts), texts
    assert len(set(firsts)) == len(firsts), "each method once"


@pytest.mark.parametrize(("kind", "package", "name"), SERVICES)
def test_no_call_waits_for_a_service_that_never_answers(kind, package, name, stand_in, patience):
    """The test would hang if any call waited for the service."""
    answer = threading.Event()

    def wait(*args, **kwargs):
        answer.wait()
        return MagicMock(id="late", hash="late", step=0)

    opens_by(stand_in(package), name, wait)
    logger = kind()
    with pytest.warns(LightlibWarning, match=r"the service has not answered \d calls yet") as caught:
        module = fit(logger)
    assert len(caught) == 1
    assert module.trainer.global_step == 5
    answer.set()
    assert logger.wait()


def test_the_version_of_clearml_stays_that_of_the_start(stand_in, patience):
    """Folders of checkpoints are made of it, on all ranks."""
    answer = threading.Event()
    module = stand_in("clearml")
    task = MagicMock(id="late")
    module.Task.init.side_effect = lambda **arguments: answer.wait() and task
    logger = ClearMLLogger("p")
    logger.prepare()
    logger.share(lambda value: value)
    answer.set()
    assert logger.wait()
    assert (logger.version, logger.state_dict()) == (None, {"run_id": "late"})
    logger.prepare()
    logger.share(lambda value: value)
    assert logger.version == "late"
