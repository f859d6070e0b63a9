"""The folder in which a program was started, also after it has changed its working directory."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lightlib import start_folder
from lightlib.launch.start import folder, hydra
from tests.processes.programs import HANGS_AFTER, environment

START = """
from lightlib.launch.environment.detect import detect
from lightlib.launch.start.subprocess import SubprocessLauncher
place = SubprocessLauncher(detect(2), timeout=1e5, grace=1e5).launch()
print(place.rank, os.path.basename(os.getcwd()))
"""
LATE = f"import os\nos.makedirs('x', exist_ok=True); os.chdir('x')\nimport lightlib\n{START}"
EARLY = f"import os, lightlib\nos.makedirs('x', exist_ok=True); os.chdir('x')\n{START}"


def run(*command, **variables):
    done = subprocess.run(
        [sys.executable, *command], env=environment(**variables), capture_output=True, text=True, timeout=HANGS_AFTER,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.processes
@pytest.mark.parametrize("text", [EARLY, LATE])
class TestASecondRank:
    """It finds the program and begins in the same folder as the first one."""

    def test_of_a_relative_script(self, text):
        Path("train.py").write_text(text)
        assert run("train.py") == ["0 x", "[rank 1] 1 x"]

    def test_of_a_module(self, text):
        Path("package").mkdir()
        Path("package/training.py").write_text(text)
        assert run("-m", "package.training") == ["0 x", "[rank 1] 1 x"]


@pytest.mark.processes
def test_spawned_ranks_import_from_relative_entries_of_the_path():
    Path("src").mkdir()
    Path("src/mine.py").write_text(
        "def work(rank):\n    return rank, __import__('os').path.basename(__import__('os').getcwd())\n"
    )
    Path("train.py").write_text(
        "import os, sys\nsys.path.append('src')\nimport lightlib\nfrom mine import work\n"
        "from lightlib.launch import launch_function\n"
        "if __name__ == '__main__':\n"
        "    os.makedirs('x'); os.chdir('x'); before = list(sys.path)\n"
        "    print(launch_function(work, 2, 'spawn'), sys.path == before)\n"
    )
    assert run("train.py") == ["(0, 'x') True"]


def test_a_working_directory_that_was_removed(monkeypatch):
    monkeypatch.setattr(start_folder, "_folder", "before")
    Path("gone").mkdir()
    os.chdir("gone")
    os.rmdir("../gone")
    start_folder.remember()
    assert start_folder.remembered() == "before"


@pytest.fixture
def running(monkeypatch):
    """Return a function that makes the configuration which Hydra has while a program of `hydra.main` runs."""

    def set_up(**changes):
        parts = {
            "runtime": {"cwd": "/start", "output_dir": "/start/outputs/1"},
            "sweep": {"dir": "multirun/7"},
            "job": {"num": "???"},
            "job_logging": {},
        }
        config = OmegaConf.create({name: part | changes.get(name, {}) for name, part in parts.items()})
        module = types.ModuleType("hydra.core.hydra_config")
        module.HydraConfig = types.SimpleNamespace(initialized=lambda: True, get=lambda: config)
        monkeypatch.setitem(sys.modules, "hydra.core.hydra_config", module)

    return set_up


class TestHydra:
    def test_a_program_without_it_keeps_its_arguments(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "hydra.core.hydra_config", raising=False)
        assert hydra.with_folder(["train.py", "a=1"]) == ["train.py", "a=1"]

    def test_a_run(self, running):
        running()
        options = ["hydra.run.dir='/start/outputs/1'", "hydra.output_subdir=null"]
        assert hydra.with_folder(["train.py"]) == ["train.py", *options]
        assert hydra.with_folder(["train.py", "+a=1", "--config-name", "b"]) == [
            "train.py", "+a=1", *options, "--config-name", "b",
        ]  # fmt: skip
        assert hydra.with_folder(["train.py", "--config-name=b", "~c"]) == [
            "train.py",
            "--config-name=b",
            "~c",
            *options,
        ]
        assert folder.folder_of_program() == "/start"

    def test_a_sweep(self, running):
        """Each rank goes through its jobs."""
        running(job={"num": 1})
        options = ["hydra.sweep.dir='/start/multirun/7'", "hydra.output_subdir=null"]
        assert hydra.with_folder(["train.py", "a=1,2", "-m"]) == ["train.py", "a=1,2", *options, "-m"]

    def test_a_folder_with_signs_of_hydras_grammar(self, running):
        running(runtime={"output_dir": "/it's a=1"})
        assert "hydra.run.dir='/it\\'s a=1'" in hydra.with_folder(["train.py"])

    def test_its_log_files_have_the_rank_in_their_names(self, running):
        running(job_logging={"handlers": {"file": {"filename": "train.log"}}})
        assert hydra.with_folder(["train.py"])[-1] == (
            "hydra.job_logging.handlers.file.filename="
            "'${hydra.runtime.output_dir}/${hydra.job.name}_rank_${oc.env:RANK}.log'"
        )

    def test_a_configuration_of_compose_is_not_of_the_command(self, running):
        running(runtime={"output_dir": "???"})
        assert hydra.with_folder(["train.py"]) == ["train.py"]
        assert hydra.original_folder() is None
