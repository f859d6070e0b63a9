"""Searches with their checkpoints in a store: a folder, S3, and stand-ins for gs:// and az://."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

pytest.importorskip("optuna")

from lightlib import experiment
from lightlib.checkpoint.storage import filesystem, options
from lightlib.config.yaml.document import ConfigError
from lightlib.errors import LightlibError, MisconfigurationException
from lightlib.experiment.file import read
from lightlib.experiment.file.storage import CheckpointStorage
from lightlib.experiment.messages import Messages
from lightlib.experiment.space import trial_seed
from lightlib.experiment.store import MARK, Store, check_store
from lightlib.experiment.work.checkpoints import checkpoints_of, collect
from lightlib.experiment.work.folder import ExperimentFolder
from tests.campaigns import faulty_store
from tests.campaigns.faulty_store import BUCKET
from tests.experiment import postgres
from tests.experiment.machine.test_containers import calls, docker  # noqa: F401  docker is a fixture
from tests.experiment.test_rungs import HALVING, PROGRAM
from tests.experiment.work.project import Project, trained, until
from tests.experiment.work.test_worker import drawn

SECRET = "Hidden/Word+17"
FILE = {
    "name": "a",
    "fit": {"trainer": {}},
    "searcher": {"name": "random", "metric": "loss", "max_trials": 3},
    "reproducibility": {"experiment_seed": 1},
}
HOLD = "fit: {model: {init_args: {holds_at: [6]}}}"
SHARDED = "{class_path: lightlib.strategies.FSDPStrategy, init_args: {state_dict_type: sharded}}"
TWO = f"{HOLD}\nsearcher: {{name: random, metric: val_loss, max_trials: 2}}"
# A package of a store over the folder BUCKETS: it refuses keys that are not those of the file.
STAND_IN = """
import os
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

class {name}(DirFileSystem):
    protocol = {protocol}

    def __init__(self, connection_string=None, **more):
        assert connection_string == (os.environ["KEY"] if {name!r} == "AzureBlobFileSystem" else None)
        super().__init__(os.environ["BUCKETS"], LocalFileSystem(auto_mkdir=True), **more)
"""
PACKAGES = {"gcsfs": ("GCSFileSystem", ("gs", "gcs")), "adlfs": ("AzureBlobFileSystem", ("az", "abfs"))}


def config(storage, **more):
    return read({**FILE, "checkpoint_storage": storage, **more})


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("s3fs", reason="pip install s3fs")
    pytest.importorskip("moto.server", reason="pip install 'moto[s3]' flask flask-cors")
    with faulty_store.store() as found:
        yield found


@pytest.fixture
def no_keys():
    """Forget the keys that a test has used."""
    before = dict(options._known)
    yield
    options._known.clear()
    options._known.update(before)


@pytest.fixture
def s3(server, no_keys):
    """The section of the file for an empty bucket."""
    server.faults.__init__()
    with server.client() as client:
        for name in server.names():
            client.delete_object(Bucket=BUCKET, Key=name)
    return f"{{type: s3, bucket: {BUCKET}, prefix: some/where, endpoint_url: '{server.address}', {KEYS}}}"


KEYS = f"access_key: me, secret_key: '{SECRET}'"


class Stored:
    """A project with its checkpoints in a store; below `top`, `names` lists its objects."""

    def __init__(self, folder, kind, search, server=None, s3=None, slots=1):
        self.shared, self.server, self.kind = folder / "shared", server if kind == "s3" else None, kind
        (self.shared / "where").mkdir(parents=True)
        section = {
            "shared_fs": f"{{type: shared_fs, host_path: {self.shared}, storage_path: where}}",
            "directory": f"{{type: directory, container_path: {self.shared}/./where/}}",
            "url": f"{{url: 'file://{self.shared}/where'}}",
            "gcs": "{type: gcs, bucket: where}",
            "azure": f"{{type: azure, container: where, connection_string: {SECRET}}}",
            "s3": s3,
        }[kind]
        self.variables = {"BUCKETS": str(self.shared), "KEY": SECRET}
        self.project = Project(folder / "project", f"checkpoint_storage: {section}\n{search}", slots=slots)
        for package, (name, protocol) in PACKAGES.items():
            (self.project.folder / f"{package}.py").write_text(STAND_IN.format(name=name, protocol=protocol))

    @property
    def names(self):
        """The checkpoints in the store: trial, attempt and name."""
        if self.server is not None:
            found = [Path(one) for one in self.server.names()]
        else:
            found = [one for one in self.shared.rglob("*") if one.is_file()]
        return sorted("/".join(one.parts[-3:]) for one in found if one.suffix == ".ckpt")

    def start(self):
        return self.project.start("experiment", "run", "search.yaml", "--slots", "2", **self.variables)

    def run(self):
        return self.project.run(**self.variables)

    def command(self, *words):
        keys = {"LIGHTLIB_SECRET_ACCESS_KEY": "me", "LIGHTLIB_SECRET_SECRET_KEY": SECRET}
        keys |= {"LIGHTLIB_SECRET_CONNECTION_STRING": SECRET}
        return self.project.command("experiment", *words, **self.variables, **keys)

    def weights(self, trial):
        """Return the last weights of a trial, by the commands alone."""
        found = json.loads(self.command("checkpoints", f"search/{trial}", "--json"))
        last = max((one for one in found if "best" not in one["path"]), key=lambda one: one["step"])["path"]
        copy = self.project.folder / f"copy-{trial}.ckpt"
        if self.server is None:
            shutil.copyfile(self.shared / last.partition("://")[2] if "://" in last else last, copy)
        else:
            with self.server.client() as client:
                client.download_file(BUCKET, last.removeprefix(f"s3://{BUCKET}/"), str(copy))
        return torch.load(copy, weights_only=True)["state_dict"]


def assert_no_secret(folder):
    files = [one for one in folder.rglob("*") if one.is_file()]
    assert files
    assert [one for one in files if SECRET.encode() in one.read_bytes()] == []


def assert_as_torch(stored, trials, epochs=3):
    for number, lr in enumerate(drawn(stored.project, trials)):
        weights, losses = trained(lr, trial_seed(7, number), epochs)
        found = stored.weights(number)
        assert all(torch.equal(found[name], value) for name, value in weights.items())
        assert stored.project.trials()[number].metric == min(losses)


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["shared_fs", "directory", "url", "gcs", "azure"])
def test_after_a_kill_of_everything_trials_continue_from_the_store(tmp_path, kind):
    assert_killed_and_continued(Stored(tmp_path, kind, TWO))


@pytest.mark.processes
def test_after_a_kill_of_everything_trials_continue_from_s3(tmp_path, server, s3):
    assert_killed_and_continued(Stored(tmp_path, "s3", TWO, server, s3))


def assert_killed_and_continued(stored):
    process = stored.start()
    until(lambda: len(stored.project.held()) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    assert "0000/attempt-0/last.ckpt" in stored.names
    printed = stored.run()
    assert [(one.state, one.attempts) for one in stored.project.trials()] == [("completed", 2)] * 2
    assert all("the newest checkpoint is" in stored.project.log(number) for number in range(2))
    assert list(stored.project.experiment.rglob("*.ckpt")) == []
    assert all(one["stored"] and "/" not in one["path"] for one in stored.project.messages(0, "checkpoint"))
    assert_as_torch(stored, 2)
    assert len(stored.names) == 4, "the best and the latest of each trial"
    best = json.loads(stored.command("best", "search", "--copy", "best.ckpt", "--json"))
    assert f"checkpoint: {best['checkpoint']}" in printed
    assert best["checkpoint"] in (stored.project.experiment / "report.html").read_text()
    assert torch.load(stored.project.folder / "best.ckpt", weights_only=True)["global_step"] == best["step"]
    assert stored.run().count("running") == 0
    assert SECRET not in printed
    assert_no_secret(stored.project.experiment)


@pytest.mark.processes
def test_a_promoted_trial_continues_from_the_store(tmp_path, server, s3):
    search = f"searcher: {{{HALVING}, num_rungs: 2, max_trials: 2, max_length: {{epochs: 4}}}}"
    stored = Stored(tmp_path, "s3", search, server, s3)
    stored.run()
    found = stored.project.trials()
    (top,) = [one.number for one in found if one.state == "completed"]
    assert found[top].attempts == 2
    weights, _ = trained(found[top].hparams["lr"], trial_seed(7, top), 4)
    assert all(torch.equal(stored.weights(top)[name], value) for name, value in weights.items())


@pytest.mark.processes
def test_another_experiment_begins_with_weights_of_the_store(tmp_path, server, s3, monkeypatch):
    """By the URL of a checkpoint and by its trial; each has a folder of its own in the store."""
    stored = Stored(tmp_path, "s3", "searcher: {name: random, metric: val_loss, max_trials: 1}", server, s3)
    stored.run()
    weights, top = stored.weights(0), set(stored.names)
    (path,) = [
        one["path"] for one in json.loads(stored.command("checkpoints", "search", "--json")) if "last" in one["path"]
    ]
    for number, source in enumerate((path, "search/0"), start=2):
        assert f"experiments/search-{number} has begun" in stored.command("fork", source)
        first = stored.project.folder / "experiments" / f"search-{number}" / "first.ckpt"
        found = torch.load(first, weights_only=True)["state_dict"]
        assert all(torch.equal(found[name], value) for name, value in weights.items())
    stored.command("work", "search-2", "--slots", "1")
    assert set(stored.names) == top
    for name, value in (("ACCESS_KEY", "me"), ("SECRET_KEY", SECRET)):
        monkeypatch.setenv(f"LIGHTLIB_SECRET_{name}", value)
    found = experiment.open(stored.project.experiment).checkpoint()
    assert found == json.loads(stored.command("best", "search", "--json"))["checkpoint"]
    places = {one.split("/")[2] for one in server.names() if one.endswith(".ckpt")}
    assert len(places) == 2
    stored.command("continue", "search", "--max-trials", "2")
    stored.command("work", "search", "--slots", "1")
    assert [one.state for one in stored.project.trials()] == ["completed"] * 2


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", SHARDED])
def test_trials_of_two_processes(tmp_path, server, s3, strategy):
    """Killed in the second epoch, it ends as without a store and without the kill; both ranks get the keys."""
    search = "searcher: {name: random, metric: val_loss, max_trials: 1}\nfit: {trainer: {strategy: STRATEGY}, MODEL}"
    search = search.replace("STRATEGY", strategy)
    plain = Project(tmp_path / "plain", search.replace(", MODEL", ""), slots=2)
    plain.run()
    model = "model: {init_args: {dies_at: [3]}}"
    stored = Stored(tmp_path, "s3", search.replace("MODEL", model), server, s3, slots=2)
    assert "restart 1 of 5" in stored.run()
    assert stored.project.trials()[0].metric == plain.trials()[0].metric
    assert "the newest checkpoint is 's3://" in stored.project.log(0)
    found = json.loads(stored.command("checkpoints", "search", "--json"))
    assert len(found) == 2
    assert all(one["bytes"] > 0 for one in found)
    shards = [one for one in server.names() if f".ckpt/{filesystem.INDEX}" in one]
    assert len(shards) == (2 if strategy == SHARDED else 0)
    assert_no_secret(stored.project.experiment)


@pytest.mark.processes
@pytest.mark.usefixtures("docker")
def test_a_container_gets_the_keys_and_no_command_line_has_them(tmp_path, server, s3):
    search = "environment: {image: 'train:1', environment_variables: ['SEEN=.']}\n" + TWO.replace(HOLD, "")
    stored = Stored(tmp_path, "s3", search, server, s3)
    stored.run()
    assert_as_torch(stored, 2)
    (found, _), *_ = calls(tmp_path / "bin")
    assert "--env=LIGHTLIB_CHECKPOINT_STORAGE" in found
    assert_no_secret(tmp_path / "bin")
    assert_no_secret(stored.project.experiment)


@pytest.mark.processes
@pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not() or "-")
def test_two_workers_with_a_database_share_the_store(tmp_path):
    """The second worker continues the trial of the first one, which is killed."""
    pytest.importorskip("psycopg")
    server = postgres.Postgres()
    try:
        stored = Stored(tmp_path, "shared_fs", TWO)
        stored.project.command("experiment", "create", "search.yaml", "--storage", server.url)
        workers = [stored.project.start("experiment", "work", "search", "--slots", one) for one in ("0,", "1,")]
        until(lambda: len(stored.project.held()) == 2)
        workers[0].kill()
        workers[0].communicate(timeout=300)
        stored.project.let_go()
        printed, _ = workers[1].communicate(timeout=500)
        assert workers[1].returncode == 0, printed
        assert sorted(one.attempts for one in stored.project.trials()) == [1, 2]
        assert_as_torch(stored, 2)
    finally:
        server.close()


@pytest.mark.processes
def test_a_command_saves_into_a_folder_of_the_store(tmp_path):
    search = "entrypoint: python3 train.py\nhyperparameters: {x: 0.5}\nsearcher: {name: single, metric: loss}"
    stored = Stored(tmp_path, "shared_fs", search)
    text = PROGRAM.format(report="step, loss=1 / step")
    text = text.replace("while step < 9", "began = step\nwhile step < 9")
    text = text.replace("    trial.report", "    assert began or step < 5\n    trial.report")
    (stored.project.folder / "train.py").write_text(text)
    printed = stored.run()
    assert "restart 1 of 5" in printed
    found = {one.parent.name: one.read_text() for one in stored.shared.rglob("step")}
    assert found == {"attempt-0": "5", "attempt-1": "9"}
    assert all((one / "checkpoints").is_symlink() for one in stored.project.attempts(0))


@pytest.mark.processes
def test_checkpoints_of_a_store_are_deleted_by_the_rules(tmp_path, server, s3):
    storage = read(_written(tmp_path, s3)).checkpoint_storage
    folder, given = ExperimentFolder(tmp_path / "a"), config({**storage.plain(), "save_trial_latest": 0})
    (tmp_path / "code").mkdir()
    folder.begin(given, tmp_path / "code")
    store, path = Store(folder.path, given), folder.attempt(0, 0)
    path.mkdir(parents=True)
    for step, loss, name in ((4, 0.5, "a"), (8, 0.3, "b"), (12, 0.4, "folder")):
        where = filesystem.join(store.place(path), f"{name}.ckpt")
        for each in [where] if name != "folder" else [f"{where}/0", f"{where}/{filesystem.INDEX}"]:
            filesystem.write(each, lambda file: file.write(b"1234") and None)
        Messages(path).send("validated", step=step, metrics={"loss": loss})
        Messages(path).send("checkpoint", step=step, path=f"{name}.ckpt", stored=True)
    found = checkpoints_of(folder, store, 0, "loss")
    assert [(one.step, one.metric, one.bytes) for one in found] == [(4, 0.5, 4), (8, 0.3, 4), (12, 0.4, 8)]
    server.faults.always = {"": "forbidden"}
    with pytest.raises(LightlibError, match=rf"The checkpoints in 's3://{BUCKET}/.*' could not be accessed: .*enied"):
        collect(folder, given, [0], at_end=True)
    server.faults.always = {}
    assert len(collect(folder, given, [0], at_end=True)) == 2
    assert [Path(one).name for one in server.names()] == ["b.ckpt", MARK]
    assert collect(folder, given, [0], at_end=True) == []


def _written(folder, section):
    path = folder / "search.yaml"
    path.write_text(
        f"name: a\nfit: {{trainer: {{}}}}\nsearcher: {{name: random, metric: loss, max_trials: 3}}\n"
        f"checkpoint_storage: {section}\n"
    )
    return path


# the name in the store
def test_processes_that_begin_at_once_have_one_place(tmp_path):
    (tmp_path / "code").mkdir()
    given = config({"type": "shared_fs", "host_path": str(tmp_path)}, name="a b")
    begin = lambda _: ExperimentFolder(tmp_path / "a").begin(given, tmp_path / "code")  # noqa: E731
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(begin, range(8)))
    (place,) = tmp_path.glob("a-b-*")
    assert [one.name for one in place.iterdir()] == [MARK]
    store = Store(tmp_path / "a", given)
    assert store.place(tmp_path / "a" / "trials" / "0003" / "attempt-1") == f"{place}/0003/attempt-1"
    ExperimentFolder(tmp_path / "other").begin(given, tmp_path / "code")
    assert len(list(tmp_path.glob("a-b-*"))) == 2


def test_a_machine_that_sees_another_store_is_refused(tmp_path):
    """An empty mount point: its trials would begin again from nothing."""
    (tmp_path / "code").mkdir()
    (tmp_path / "shared").mkdir()
    given = config({"type": "shared_fs", "host_path": str(tmp_path / "shared")})
    ExperimentFolder(tmp_path / "a").begin(given, tmp_path / "code")
    Store(tmp_path / "a", given).require()
    (tmp_path / "shared").rename(tmp_path / "unmounted")
    (tmp_path / "shared").mkdir()
    with pytest.raises(MisconfigurationException, match=rf"are not in '{tmp_path}/shared/a-.*from this machine"):
        Store(tmp_path / "a", given).require()


# refused before anything is written
S3 = {"type": "s3", "bucket": "b"}


@pytest.mark.parametrize(
    ("storage", "more", "message"),
    [
        ({"type": "shared_fs", "host_path": "/absent"}, {}, r"host_path' is '/absent', which does not exist"),
        ({"type": "directory", "container_path": "a"}, {}, r"container_path' is 'a', which is relative"),
        ({"type": "shared_fs", "host_path": "/", "propagation": "shared"}, {}, "no effect without environment.image"),
        ({"url": "memory://a"}, {}, r"is 'memory://a', which ends with each process"),
        ({"url": "nothing://a"}, {}, r"(?s)is 'nothing://a', which needs a package: Protocol not known: nothing"),
        ({"url": "ftp://me:hidden@host/a"}, {}, r"url' has a password"),
        ({"type": "gcs", "bucket": "b"}, {}, "(?s)is 'gs://b', which needs a package:.*Fix: pip install gcsfs"),
        ({**S3, "access_key": "a"}, {}, "has access_key, but no secret_key"),
        (S3, {"entrypoint": "python3 t.py"}, "leads to 's3://b', and the trials are a command"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused(storage, more, message, no_keys):
    with pytest.raises(MisconfigurationException, match=message) as error:
        check_store(config(storage, **more))
    assert "hidden" not in str(error.value)


def test_a_folder_of_containers_that_is_another_one_here_is_refused(tmp_path):
    mounts = [{"host_path": "/tmp", "container_path": str(tmp_path)}]
    given = config({"type": "directory", "container_path": str(tmp_path)}, bind_mounts=mounts)
    check_store(given)
    with pytest.raises(MisconfigurationException, match="where containers have the folder '/tmp' of bind_mounts"):
        check_store(given, contained=True)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (rf"bucket: {BUCKET}", "bucket: nowhere", "bucket does not exist"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:9", "connect"),
    ],
)
def test_a_wrong_bucket_or_endpoint_begins_nothing(tmp_path, server, s3, monkeypatch, old, new, message):
    faulty_store.quickly(monkeypatch.setattr)
    path = _written(tmp_path, re.sub(old, new, s3))
    with pytest.raises(ConfigError, match=f"(?s)which cannot be written: .*{message}") as error:
        experiment.run(path, slots=1, root=tmp_path / "experiments")
    assert list(tmp_path.iterdir()) == [path]
    assert SECRET not in str(error.value)


# secrets
@pytest.mark.processes
def test_the_keys_are_read_from_variables_where_the_copy_has_none(tmp_path, s3, monkeypatch):
    (tmp_path / "code").mkdir()
    folder, given = ExperimentFolder(tmp_path / "a"), read(_written(tmp_path, s3))
    folder.begin(given, tmp_path / "code")
    with pytest.raises(MisconfigurationException, match="export LIGHTLIB_SECRET_ACCESS_KEY=… LIGHTLIB_SECRET_SECRET"):
        Store(folder.path, folder.config)
    monkeypatch.setenv("LIGHTLIB_SECRET_ACCESS_KEY", "me")
    monkeypatch.setenv("LIGHTLIB_SECRET_SECRET_KEY", SECRET)
    Store(folder.path, folder.config).require()


def test_a_file_with_secrets_is_not_copied_with_the_code(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "model.py").touch()
    account = f"{{username: me, password: '{SECRET}', serveraddress: a}}"
    path = _written(code, f"{{type: shared_fs, host_path: {tmp_path}}}")
    text = path.read_text()
    path.write_text(f"{text}environment: {{environment_variables: ['API_KEY={SECRET}'], registry_auth: {account}}}\n")
    folder = ExperimentFolder(code / "experiments" / "a")
    folder.begin(read(path), code)
    assert [one.name for one in folder.context.iterdir()] == ["model.py"]
    assert_no_secret(folder.path)
    path.write_text(f"{text}environment: {{environment_variables: [COLOUR=green]}}\n")
    other = ExperimentFolder(code / "experiments" / "b")
    other.begin(read(path), code)
    assert sorted(one.name for one in other.context.iterdir()) == ["model.py", "search.yaml"]


def test_options_of_fsspec():
    s3 = CheckpointStorage(type="s3", bucket="b", access_key="a", secret_key=SECRET, endpoint_url="http://e")
    assert s3.options() == {"key": "a", "secret": SECRET, "endpoint_url": "http://e"}
    azure = CheckpointStorage(
        type="azure", container="c", account_url="https://me.blob.core.windows.net", credential="k"
    )
    assert azure.options() == {"account_name": "me", "credential": "k"}
    assert CheckpointStorage(type="gcs", bucket="b").options() == {}
