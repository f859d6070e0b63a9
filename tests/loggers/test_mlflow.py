"""MLFlowLogger, against a stand-in for the client."""

from __future__ import annotations

import pickle
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar, NamedTuple

import pytest

from lightlib.errors import MisconfigurationException
from lightlib.loggers import MLFlowLogger
from lightlib.loggers.media import Text
from lightlib.report import LightlibWarning, rank_zero_only


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str


class MlflowException(Exception):
    pass


class Client:
    made: ClassVar[list[Client]] = []

    def __init__(self, uri):
        self.uri, self.calls = uri, []
        if uri.startswith("bad"):
            raise MlflowException("no such store")
        self.made.append(self)

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="7") if name == "known" else None

    def create_experiment(self, name, artifact_location=None):
        self.calls.append(("create_experiment", name, artifact_location))
        return "8"

    def create_run(self, experiment_id, tags=None, run_name=None):
        self.calls.append(("create_run", experiment_id, tags, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def get_run(self, run_id):
        if run_id == "gone":
            raise MlflowException("no run with id gone")
        return SimpleNamespace(
            info=SimpleNamespace(experiment_id="9", status="FINISHED" if run_id == "old" else "RUNNING")
        )

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.calls.append((name, *args, kwargs) if kwargs else (name, *args))


@pytest.fixture(autouse=True)
def mlflow(monkeypatch):
    module, entities, exceptions = (ModuleType(n) for n in ("mlflow", "mlflow.entities", "mlflow.exceptions"))
    module.MlflowClient, entities.Metric, entities.Param = Client, Metric, Param
    exceptions.MlflowException = MlflowException
    for part in (module, entities, exceptions):
        monkeypatch.setitem(sys.modules, part.__name__, part)
    monkeypatch.setattr(Client, "made", [])
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return module


def test_how_a_run_is_started(monkeypatch):
    logger = MLFlowLogger("new", run_name="n", tags={"a": "b"}, artifact_location="s3://x")
    assert Client.made == []
    logger.prepare()
    assert logger.experiment.calls == [("create_experiment", "new", "s3://x"), ("create_run", "8", {"a": "b"}, "n")]
    assert (logger.name, logger.version, logger.save_dir) == ("8", "r", "./mlruns")
    assert MLFlowLogger("known").experiment_id == "7"
    assert MLFlowLogger(run_id="old").name == "9"
    assert MLFlowLogger(tracking_uri="http://x").save_dir is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://environment")
    assert MLFlowLogger().experiment.uri == "http://environment"


def test_without_a_server_there_is_a_database_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = MLFlowLogger("new")
    assert logger.save_dir == "./mlruns"
    assert logger.experiment.uri == "sqlite:///./mlruns/mlflow.db"
    assert logger.experiment.calls[0] == ("create_experiment", "new", None)  # MLflow's own place is ./mlruns
    assert (tmp_path / "mlruns").is_dir()
    other = MLFlowLogger("new", save_dir=tmp_path / "runs")
    assert other.experiment.uri == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert other.experiment.calls[0] == ("create_experiment", "new", str(tmp_path / "runs" / "new"))


def test_files_of_earlier_runs_are_continued(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "meta.yaml").touch()
    logger = MLFlowLogger("known", save_dir=tmp_path)
    assert (logger.experiment.uri, logger.save_dir) == (f"file:{tmp_path}", str(tmp_path))
    (tmp_path / "mlflow.db").touch()
    assert MLFlowLogger("known", save_dir=tmp_path).experiment.uri == f"sqlite:///{tmp_path}/mlflow.db"


def test_each_run_has_a_folder_which_is_found_again_without_starting_one(tmp_path):
    logger = MLFlowLogger("known", save_dir=tmp_path)
    (tmp_path / "7" / "before" / "checkpoints").mkdir(parents=True)
    assert logger.run_dir("root") is None
    assert logger.earlier_run_dirs("root") == [str(tmp_path / "7" / "before")]
    assert MLFlowLogger("unknown", save_dir=tmp_path).earlier_run_dirs("root") == []
    assert MLFlowLogger("known", save_dir=tmp_path, run_id="r").earlier_run_dirs("root") == []
    assert [call[0] for made in Client.made for call in made.calls] == []
    logger.prepare()
    assert logger.run_dir("root") == str(tmp_path / "7" / "r")
    server = MLFlowLogger("known", tracking_uri="http://x")
    server.prepare()
    assert server.run_dir("root") == "root/7/r"


def test_a_database_needs_more_than_the_small_package(monkeypatch, tmp_path):
    def without_sqlalchemy(uri):
        raise ModuleNotFoundError("No module named 'sqlalchemy'")

    monkeypatch.setattr(sys.modules["mlflow"], "MlflowClient", without_sqlalchemy)
    with pytest.raises(
        MisconfigurationException, match=r"No module named 'sqlalchemy'(.|\n)*pip install 'mlflow>=.*CSVLogger"
    ):
        MLFlowLogger(save_dir=tmp_path).prepare()


def test_what_it_is_can_be_read():
    assert repr(MLFlowLogger("e", tracking_uri="http://user:secret@x")) == "MLFlowLogger(experiment_name='e')"
    assert Client.made == []


def test_metrics():
    logger = MLFlowLogger("known", prefix="p", synchronous=False)
    logger.log_metrics({"a/b": 1.0, "größe{x}": 2, "../c": 3.0, "//d": 4.0}, 5)
    name, run, arguments = logger.experiment.calls[-1]
    assert (name, run, arguments["synchronous"]) == ("log_batch", "r", False)
    metrics = arguments["metrics"]
    assert [(m.key, m.value) for m in metrics] == [
        ("p-a/b", 1.0),
        ("p-größe_x_", 2.0),
        ("p-../c", 3.0),
        ("p-/_/d", 4.0),
    ]
    assert {m.step for m in metrics} == {5}
    assert metrics[0].timestamp > 1.7e12


def test_names_that_are_no_path():
    logger = MLFlowLogger("known")
    logger.log_metrics({"../c": 3.0, "a/../b": 1.0, "/d/": 4.0, ".": 1.0})
    arguments = logger.experiment.calls[-1][-1]
    assert [m.key for m in arguments["metrics"]] == ["_/c", "a/_/b", "_/d/_", "_"]
    assert set(arguments) == {"metrics"}


def test_many_are_sent_in_parts():
    logger = MLFlowLogger("known")
    logger.log_metrics({str(i): 1.0 for i in range(2500)}, 0)
    logger.log_hyperparams({str(i): i for i in range(250)})
    calls = [call[-1] for call in logger.experiment.calls if call[0] == "log_batch"]
    assert [len(call["metrics"]) for call in calls[:3]] == [1000, 1000, 500]
    assert [len(call["params"]) for call in calls[3:]] == [100, 100, 50]


def test_hyperparameters():
    logger = MLFlowLogger("known")
    logger.log_hyperparams({"a": {"b": 1, "token": "x"}, "long": "y" * 300})
    params = logger.experiment.calls[-1][-1]["params"]
    assert params == [Param("a/b", "1"), Param("a/token", "***"), Param("long", "y" * 250)]


@pytest.mark.parametrize(("status", "expected"), [("success", "FINISHED"), ("failed", "FAILED"), ("killed", "KILLED")])
def test_finalize(status, expected):
    logger = MLFlowLogger("known")
    logger.finalize(status)
    assert Client.made == []
    logger.prepare()
    logger.finalize(status)
    assert logger.experiment.calls[-1] == ("set_terminated", "r", expected)


def test_checkpoints(checkpoints, tmp_path):
    logger = MLFlowLogger("known", log_model=True)
    logger.after_save_checkpoint(checkpoints)
    logger.prepare()
    logger.finalize("success")
    place = "model/checkpoints/epoch=1"
    upload, description, _ = logger.experiment.calls[-3:]
    assert upload == ("log_artifact", "r", checkpoints.best_model_path, place)
    assert description[2]["aliases"] == ["latest", "best"]
    assert description[3] == f"{place}/metadata.json"
    logger = MLFlowLogger("known", log_model="all")
    path = Path(checkpoints.best_model_path)
    path.unlink()
    path.mkdir()
    logger.after_save_checkpoint(checkpoints)
    assert logger.experiment.calls[-2] == ("log_artifacts", "r", str(path), f"{place}/epoch=1.ckpt")


def test_other_ranks(monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = MLFlowLogger()
    logger.prepare()
    logger.log_metrics({"x": 1.0}, 0)
    assert (Client.made, logger.version) == ([], None)
    logger.share(lambda value: ("7", "r"))
    assert (logger.name, logger.version) == ("7", "r")


def test_pickled_it_continues_the_run():
    logger = MLFlowLogger("known")
    logger.prepare()
    copy = pickle.loads(pickle.dumps(logger))
    assert (copy.run_id, copy.experiment.calls) == ("r", [])


def test_a_server_that_cannot_be_used():
    match = (
        r"cannot use tracking_uri 'bad://x': no such store\n  Expected: a server.*\n  Fix: MLFlowLogger\(tracking_uri="
    )
    with pytest.raises(MisconfigurationException, match=match):
        MLFlowLogger(tracking_uri="bad://x").prepare()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(
        MisconfigurationException, match=r"needs the package mlflow,.*\n.*\n  Fix: pip install 'mlflow>="
    ):
        MLFlowLogger().prepare()


def test_a_resumed_training_goes_on_with_the_run_of_the_checkpoint():
    logger = MLFlowLogger("known")
    assert logger.state_dict() == {}
    logger.prepare()
    assert logger.state_dict() == {"run_id": "r"}
    resumed = MLFlowLogger("known")
    resumed.load_state_dict({"run_id": "old"})
    resumed.prepare()
    assert (resumed.run_id, resumed.experiment_id) == ("old", "9")
    assert resumed.experiment.calls == [("update_run", "old", {"status": "RUNNING"})]


def test_a_run_that_was_asked_for_stays():
    logger = MLFlowLogger("known", run_id="mine")
    logger.load_state_dict({"run_id": "old"})
    assert logger.run_id == "mine"


def test_a_run_of_the_checkpoint_that_is_gone_gives_way_to_a_new_one():
    logger = MLFlowLogger("known")
    logger.load_state_dict({"run_id": "gone"})
    with pytest.warns(LightlibWarning, match="run gone of the checkpoint is not at .*; a new one is started: no run"):
        logger.prepare()
    assert logger.run_id == "r"
    with pytest.raises(MisconfigurationException, match="no run with id gone"):
        MLFlowLogger("known", run_id="gone").prepare()


def test_media_are_artifacts():
    logger = MLFlowLogger()
    logger.log_media("val/a note", Text("x"), 3)
    (call,) = [call for call in logger.experiment.calls if call[0] == "log_artifact"]
    assert (call[1], Path(call[2]).name, call[3]) == ("r", "00000003.txt", "media/val/a note")
    assert not Path(call[2]).exists(), "a temporary file"


def test_a_server_that_stops_answering_does_not_hold_up_training(monkeypatch):
    """The test would hang if a call waited for the server."""
    monkeypatch.setattr("lightlib.loggers.background_calls.PATIENCE", 0.001)
    answer, logger = threading.Event(), MLFlowLogger(tracking_uri="https://example.com")
    client = logger.experiment
    sent = []

    def log_batch(*args, **kwargs):
        answer.wait()
        sent.append(kwargs["metrics"][0].value)

    client.log_batch = log_batch
    for step in range(3):
        logger.log_metrics({"x": float(step)}, step)
    logger.log_media("note", Text("x"), 3)
    with pytest.warns(LightlibWarning, match=r"MLFlowLogger: the service has not answered 5 calls yet"):
        logger.finalize("success")
    answer.set()
    assert logger._calls.wait(None)
    assert sent == [0.0, 1.0, 2.0]
    assert [call[0] for call in client.calls][-2:] == ["log_artifact", "set_terminated"]


def test_an_error_of_the_server_is_raised_by_the_next_call(monkeypatch):
    logger = MLFlowLogger(tracking_uri="https://example.com")
    logger.experiment.log_batch = lambda *args, **kwargs: (_ for _ in ()).throw(MlflowException("gone"))
    logger.log_metrics({"x": 1.0}, 0)
    assert logger._calls.wait(None)
    with pytest.raises(MlflowException, match="gone"):
        logger.finalize("failed")
