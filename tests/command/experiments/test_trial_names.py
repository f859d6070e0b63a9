"""Names of experiments on the command line, and commands that begin at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from lightlib import compat
from lightlib.command.experiments.trial_names import command, folder_of
from lightlib.errors import MisconfigurationException
from lightlib.experiment.file import read
from lightlib.experiment.work.folder import ExperimentFolder

FILE = {"fit": {"trainer": {}}, "searcher": {"name": "single", "metric": "loss"}}


@pytest.fixture
def begun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    for more in ({"name": "one"}, {"name": "two", "workspace": "w", "project": "p"}):
        config = read({**FILE, **more})
        ExperimentFolder.of(config).begin(config, "code")
    return tmp_path / "experiments"


def test_an_experiment_is_found_by_its_folder_or_its_name(begun):
    assert folder_of("one").path == folder_of("experiments/one").path == begun / "one"
    assert folder_of("w/p/two").path == folder_of(str(begun / "w" / "p" / "two")).path == begun / "w" / "p" / "two"
    assert ExperimentFolder.names() == ["one", "w/p/two"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("onee", r"'onee'\. Did you mean 'one'\?(.|\n)*one of one, w/p/two(.|\n)*Fix: write one\."),
        ("xyzxyz", r"There is no experiment 'xyzxyz'\.(.|\n)*Fix: `lightlib experiment list` lists"),
    ],
)
def test_a_wrong_name_gets_the_nearest_one(begun, text, message):
    with pytest.raises(MisconfigurationException, match=message):
        folder_of(text)


@pytest.mark.parametrize(
    ("paths", "start"),
    [
        ([], "lightlib experiment"),
        (["code"], "lightlib experiment"),
        ([str(compat.SHIMS), "code"], "lightlib compat run -m lightlib experiment"),
    ],
)
def test_the_command_that_continues_starts_as_this_one_was_started(paths, start, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    assert command("run", "my search.yaml") == f"{start} run 'my search.yaml'"


@pytest.mark.processes
def test_no_command_waits_for_torch_before_it_has_read_its_arguments():
    """Those that run trials import it while the process of the trials does so, too."""
    names = ("looking", "ordering", "logs", "watching", "report", "running", "working")
    modules = ", ".join(f"lightlib.command.experiments.{name}" for name in names)
    program = f"import sys, {modules}; print('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
