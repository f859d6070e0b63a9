"""Parts of a worker alone: folders, messages, mounts, refusals, and the results that a kill has left."""

from __future__ import annotations

import os
import pickle
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from lightlib.command.main import main
from lightlib.config.yaml.document import ConfigError
from lightlib.errors import MisconfigurationException
from lightlib.experiment import current
from lightlib.experiment.file import read
from lightlib.experiment.job import Job
from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.machine.containers import INSIDE
from lightlib.experiment.machine.needs import check_machine, command_of
from lightlib.experiment.machine.slots import Slot, Slots
from lightlib.experiment.messages import Messages
from lightlib.experiment.space import Space
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.open import Accepts, check
from lightlib.experiment.work.results import Results, described, short_names
from lightlib.experiment.work.trial import TrialHere
from lightlib.experiment.work.trial_source import source_of

FILE = {
    "name": "a",
    "fit": {"trainer": {}},
    "hyperparameters": {"trainer.max_steps": {"type": "int", "minval": 1, "maxval": 3}},
    "searcher": {"name": "random", "metric": "val_loss", "max_trials": 3},
    "reproducibility": {"experiment_seed": 1},
}


def config(**changes):
    return read({**FILE, **changes})


@pytest.fixture
def slots(tmp_path):
    return Slots([Slot("cpu", 0), Slot("cpu", 1)], tmp_path / "locks")


def test_a_folder_begins_once(tmp_path):
    code = tmp_path / "code"
    (code / "experiments").mkdir(parents=True)
    (code / "model.py").write_text("first")
    folder = ExperimentFolder.of(config(), code / "experiments")
    assert folder.begin(config(), code).reproducibility.experiment_seed == 1
    (code / "model.py").write_text("second")
    assert folder.begin(config(max_restarts=2), code).max_restarts == 2
    assert ExperimentFolder(folder.path).config.max_restarts == 2
    assert (folder.context / "model.py").read_text() == "first"
    assert [path.name for path in folder.context.iterdir()] == ["model.py"]
    with pytest.raises(ConfigError, match=r"'searcher\.metric' is now 'acc' instead of 'val_loss'"):
        folder.begin(config(searcher={**FILE["searcher"], "metric": "acc"}), code)


def test_a_seed_is_drawn_once(tmp_path):
    unseeded = read({key: value for key, value in FILE.items() if key != "reproducibility"})
    folder = ExperimentFolder(tmp_path / "a")
    (tmp_path / "code").mkdir()
    seed = folder.begin(unseeded, tmp_path / "code").reproducibility.experiment_seed
    assert seed is not None
    assert folder.begin(unseeded, tmp_path / "code").reproducibility.experiment_seed == seed


def test_processes_that_begin_at_once_have_one_seed(tmp_path):
    unseeded = read({key: value for key, value in FILE.items() if key != "reproducibility"})
    (tmp_path / "code").mkdir()
    begin = lambda _: ExperimentFolder(tmp_path / "a").begin(unseeded, tmp_path / "code")  # noqa: E731
    with ThreadPoolExecutor(8) as pool:
        seeds = {one.reproducibility.experiment_seed for one in pool.map(begin, range(8))}
    assert len(seeds) == 1
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [".context", "experiment.yaml"]


def test_a_kill_while_the_folder_is_made_leaves_nothing_that_is_refused(tmp_path):
    (tmp_path / "a" / ".new-killed" / ".context").mkdir(parents=True)
    (tmp_path / "code").mkdir()
    assert ExperimentFolder(tmp_path / "a").begin(config(), tmp_path / "code").name == "a"


def test_secrets_reach_trials_and_no_file(tmp_path, slots, monkeypatch):
    (tmp_path / "code").mkdir()
    secret = config(environment={"environment_variables": ["API_KEY=hidden"]})
    folder = ExperimentFolder(tmp_path / "a")
    assert folder.begin(secret, tmp_path / "code").environment.variables("cpu") == {"API_KEY": "hidden"}
    assert "hidden" not in (folder.path / "experiment.yaml").read_text()
    with pytest.raises(MisconfigurationException, match=r"(?s)secrets .* are masked.*export LIGHTLIB_SECRET_API_KEY=…"):
        check(folder.config, folder.context, slots)
    monkeypatch.setenv("LIGHTLIB_SECRET_API_KEY", "hidden")
    check(folder.config, folder.context, slots)
    assert described({"api_key": "hidden", "lr": 0.5}) == "api_key=***, lr=0.5"


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "experiments" / "a").mkdir(parents=True)
    (tmp_path / "experiments" / "a" / "notes").touch()
    with pytest.raises(MisconfigurationException, match="is not the folder of an experiment; it has notes"):
        ExperimentFolder.of(config(), tmp_path / "experiments").begin(config(), tmp_path)
    assert [path.name for path in (tmp_path / "experiments" / "a").iterdir()] == ["notes"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"searcher": {"name": "single", "metric": "a"}},
            "is 'single', which has one trial, and trainer",
        ),
        (
            {"searcher": {**FILE["searcher"], "name": "tpe", "options": {"n_startup_trial": 3}}},
            "is not a key of the options of tpe. Did you mean 'n_startup_trials'",
        ),
        ({"searcher": {"class_path": "a.B", "metric": "a"}}, r"'a\.B' cannot be imported: ModuleNotFoundError"),
        (
            {"min_checkpoint_period": {"records": 8}},
            "in records, and the hyperparameter 'global_batch_size' is missing",
        ),
        (
            {"resources": {"slots_per_trial": 3, "is_single_node": False}},
            r"is 3, and this worker has 2 slots \(cpu\)\. A trial runs on one machine, with or without resources\.is_s",
        ),
        (
            {"bind_mounts": [{"host_path": "/absent", "container_path": "x"}]},
            "is '/absent', which does not exist",
        ),
        ({"bind_mounts": [{"host_path": "/", "container_path": "/data"}]}, "is '/data', which needs a container"),
        ({"bind_mounts": [{"host_path": "/", "container_path": "log.txt"}]}, "is 'log.txt', which needs a container"),
    ],
)
def test_an_experiment_that_cannot_run_is_refused(tmp_path, slots, changes, message):
    with pytest.raises(MisconfigurationException, match=message):
        check(config(**changes), tmp_path, slots)


def test_shared_memory_that_is_not_there_warns():
    with pytest.warns(match=r"is 1\.1e\+12.* GiB, and .* GiB of shared memory"):
        check_machine(config(resources={"shm_size": "1048576P"}))


def test_a_mount_without_a_container_that_should_be_read_only_warns(tmp_path, monkeypatch, recwarn):
    mounts = config(bind_mounts=[{"host_path": str(tmp_path), "container_path": "x", "read_only": True}])
    with pytest.warns(match=rf"read_only' is true, and nothing .* from writing to '{tmp_path}'.*Fix: environment"):
        check_machine(mounts)
    check_machine(mounts, contained=True)
    monkeypatch.setattr("os.access", lambda path, mode: (path, mode) != (str(tmp_path), os.W_OK))
    check_machine(mounts)
    assert list(recwarn) == []


def test_ports_need_no_proxy_on_this_machine(caplog, monkeypatch):
    ports = config(environment={"proxy_ports": [8080, {"proxy_port": 9000, "proxy_tcp": True}]})
    with caplog.at_level("INFO", "lightlib"):
        check_machine(ports)
        assert "'environment.proxy_ports': no proxy is needed" in caplog.text
        assert "so 8080, 9000 can be reached there" in caplog.text
        caplog.clear()
        monkeypatch.setenv(INSIDE, "1")  # in a pod, the manifest names them
        check_machine(ports)
    assert caplog.text == ""


def test_random_points_are_not_tried_twice(tmp_path):
    """Of three values three trials have each one; `duplicates: allow` draws as it comes."""
    for duplicates, different in (("skip", 3), ("allow", 2)):
        place = ExperimentFolder(tmp_path / duplicates)
        changed = config(
            searcher={**FILE["searcher"], "duplicates": duplicates}, reproducibility={"experiment_seed": 3}
        )
        with open_ledger(place, changed) as ledger:
            source = source_of(changed, Space(changed.hyperparameters), 2)
            while entry := source.next_entry(ledger.snapshot()):
                ledger.add(entry)
            points = {chain[0].params["trainer.max_steps"] for chain in ledger.snapshot().chains.values()}
        assert len(points) == different


def test_excluded_machines_and_slots_that_are_in_use(tmp_path):
    folder = ExperimentFolder(tmp_path)
    with open_ledger(folder, config()) as ledger:
        for number in range(3):
            ledger.add(Entry(number))
        accepts = Accepts(config(resources={"max_slots": 2}))
        first, second, third = (chain[0] for chain in ledger.snapshot().chains.values())
        assert ledger.claim(first, {})
        assert accepts(ledger.snapshot(), third.trial)
        assert ledger.claim(second, {})
        assert not accepts(ledger.snapshot(), third.trial)
        anywhere = Accepts(config())
        assert anywhere(ledger.snapshot(), third.trial)
        ledger.write(third, "excluded", socket.gethostname())
        assert not anywhere(ledger.snapshot(), third.trial)


def test_a_command_that_may_not_restart(tmp_path):
    with open_ledger(ExperimentFolder(tmp_path), config()) as ledger:
        ledger.add(Entry(0))
        attempt = ledger.snapshot().last(0)
        assert ledger.claim(attempt, {})
        ledger.end(attempt, "failed", again=False)
        assert ledger.snapshot().state_of(0) == "errored"
        assert len(ledger.snapshot().attempts) == 1


@pytest.mark.parametrize(
    ("entrypoint", "command"),
    [
        ("python3 train.py", ("python3", "train.py")),
        (
            "python3 -m determined.launch.torch_distributed train.py",
            ("python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"),
        ),
        (None, ()),
    ],
)
def test_command_lines(entrypoint, command):
    assert command_of(config(entrypoint=entrypoint), 2) == command


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


def test_messages_in_a_file(tmp_path):
    there, here = Messages(tmp_path), Messages(tmp_path)
    assert here.new() == []
    there.send("validated", step=1)
    path = tmp_path / "messages.jsonl"
    with path.open("a") as file:
        file.write('no message\n[1]\n{"kind": "torn')
    assert here.new() == [{"kind": "validated", "step": 1}]
    assert here.new() == []
    with path.open("a") as file:
        file.write('"}\n')
    assert here.new() == [{"kind": "torn"}]


def test_messages_of_a_copy_are_in_their_own_file(tmp_path):
    """As with `ddp_spawn`: the callbacks are pickled after an initial validation was sent."""
    there = Messages(tmp_path)
    there.send("validated", step=0)
    copy = pickle.loads(pickle.dumps(there))
    del there  # closes the file; the next one that is opened has its number
    with (tmp_path / "other").open("wb"):
        copy.send("validated", step=1)
    assert (tmp_path / "other").read_bytes() == b""
    assert [one["step"] for one in Messages(tmp_path).new()] == [0, 1]


def test_a_job_is_the_same_after_json():
    job = Job(1, 2, "a", "b", {"lr": 0.1}, "val_loss", command=("x",), earlier=("c",), best=0.5)
    assert Job.from_json(job.as_json()) == job


def test_outside_of_an_experiment_reports_are_printed(capsys, monkeypatch):
    monkeypatch.delenv("LIGHTLIB_TRIAL_JOB", raising=False)
    trial = current()
    assert (trial.hparams, trial.should_stop) == ({}, False)
    trial.report(3, val_loss=0.25)
    assert "step 3: val_loss 0.25" in "".join(capsys.readouterr())


def test_results_of_an_experiment_without_trials(tmp_path):
    with open_ledger(ExperimentFolder(tmp_path), config()) as ledger:
        results = Results(ExperimentFolder(tmp_path), config(), ledger)
    assert (results.trials, results.best) == ([], None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "absent.yaml"], "There is no file 'absent.yaml'"),
        (["trials", "absent"], "There is no experiment 'absent'"),
        (["logs", "absent"], "'absent' is no trial"),
        (["logs", "absent/1"], "There is no experiment 'absent'"),
        (["runn"], "invalid choice: 'runn'"),
    ],
)
def test_wrong_words(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_first_file_of_the_page_is_right():
    page = (Path(__file__).parents[3] / "docs/experiments.md").read_text("utf-8")
    assert read_text(page.split("```yaml\n")[1].partition("```")[0]).searcher.max_trials == 16


def read_text(text):
    path = Path("search.yaml")
    path.write_text(text)
    return read(path)


def test_short_names_are_the_shortest_ends_of_one_key():
    found = short_names(["a.lr", "model.lr", "model.width", "lr"])
    assert found == {"a.lr": "a.lr", "model.lr": "model.lr", "model.width": "width", "lr": "lr"}
