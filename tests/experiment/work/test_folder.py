"""The folder of an experiment: it begins once, with one seed, also after a kill."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("optuna")

from lightlib.config.yaml.document import ConfigError
from lightlib.errors import MisconfigurationException
from lightlib.experiment.file import read
from lightlib.experiment.work.folder import ExperimentFolder
from tests.experiment.work.small import FILE, config


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


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "experiments" / "a").mkdir(parents=True)
    (tmp_path / "experiments" / "a" / "notes").touch()
    with pytest.raises(MisconfigurationException, match="is not the folder of an experiment; it has notes"):
        ExperimentFolder.of(config(), tmp_path / "experiments").begin(config(), tmp_path)
    assert [path.name for path in (tmp_path / "experiments" / "a").iterdir()] == ["notes"]
