"""Switching compat on: `compat run`, the entry at start-up, and the messages about a real Lightning."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightlib import compat
from lightlib.command import main
from lightlib.errors import MisconfigurationException
from lightlib.version import __version__
from lightlib_lightning.command import command
from tests.processes import programs

FIRST_LINE = f"lightlib {__version__} serves as Lightning 2.6"
SCRIPT = """
import sys
import lightning, pytorch_lightning as pl
print(lightning.pytorch is pl, pl.__version__, sys.argv, __name__, flush=True)
if "raises" in sys.argv:
    raise ValueError("boom")
if "waits" in sys.argv:
    import time
    time.sleep(600)
sys.exit(7 if "exits" in sys.argv else 0)
"""
RANKS = """
import sys, warnings
import lightning as L
from lightning.pytorch.demos.boring_classes import BoringModel

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy=sys.argv[1], max_steps=2, limit_val_batches=1, **quiet)
    trainer.fit(BoringModel())
    print("rank", trainer.global_rank, "of", trainer.world_size, L.Trainer.__module__, flush=True)
"""


@pytest.fixture
def site_packages(monkeypatch):
    """A folder in the place of site-packages, without one of the user."""
    folder = Path("site-packages").resolve()
    folder.mkdir()
    monkeypatch.setattr(command.sysconfig, "get_paths", lambda: {"purelib": str(folder)})
    monkeypatch.setattr(command.site, "ENABLE_USER_SITE", False)
    monkeypatch.delenv(command.VARIABLE, raising=False)
    return folder


@pytest.fixture
def real(monkeypatch):
    """A real Lightning that seems to be installed."""
    monkeypatch.setattr(compat, "distributions", lambda: [compat.Distribution("lightning", "2.5.1")])


def compat_run(*words: str) -> subprocess.CompletedProcess[str]:
    Path("program.py").write_text(SCRIPT)
    return programs.interpreter("-m", "lightlib", "compat", "run", *words)


class TestRun:
    @pytest.mark.processes
    def test_the_program_gets_its_words_and_ends_with_its_own_code(self):
        done = compat_run("program.py", "exits", "--", "-m", "--help")
        assert done.stdout == "True 2.6.6 ['program.py', 'exits', '--', '-m', '--help'] __main__\n"
        assert (done.returncode, done.stderr) == (7, f"{FIRST_LINE}\n")

    @pytest.mark.processes
    def test_a_module_fails_with_the_traceback_of_python_itself(self):
        done = compat_run("-m", "program", "raises")
        path = Path("program.py").resolve()
        assert done.stdout == f"True 2.6.6 [{str(path)!r}, 'raises'] __main__\n"
        assert done.returncode == 1
        assert done.stderr.endswith("ValueError: boom\n")
        assert "lightlib" not in done.stderr.removeprefix(FIRST_LINE)

    @pytest.mark.processes
    def test_a_module_that_is_missing_is_reported_by_python(self):
        done = compat_run("-m", "nothing_of_this_name")
        assert (done.returncode, done.stdout) == (1, "")
        assert "No module named nothing_of_this_name" in done.stderr

    @pytest.mark.processes
    def test_ctrl_c_ends_the_program_by_the_signal(self):
        Path("program.py").write_text(SCRIPT)
        words = [sys.executable, "-m", "lightlib", "compat", "run", "program.py", "waits"]
        with subprocess.Popen(
            words, env=programs.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            program.stdout.readline()
            program.send_signal(signal.SIGINT)
            _, error = program.communicate(timeout=programs.HANGS_AFTER)
        assert program.returncode == -signal.SIGINT
        assert error.endswith("KeyboardInterrupt\n")

    @pytest.mark.processes
    @pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
    def test_the_ranks_have_it_as_well_and_only_the_first_prints_it(self, strategy):
        Path("ranks.py").write_text(RANKS)
        done = programs.interpreter("-m", "lightlib", "compat", "run", "ranks.py", strategy)
        assert done.returncode == 0, done.stderr
        assert "rank 0 of 2 lightlib.core.trainer" in done.stdout
        assert strategy == "ddp_spawn" or "rank 1 of 2 lightlib.core.trainer" in done.stdout + done.stderr
        assert (done.stdout + done.stderr).count(FIRST_LINE) == 1

    def test_the_interpreter_is_this_one_and_its_children_inherit_the_path(self, monkeypatch):
        Path("program.py").write_text("")
        started = []
        monkeypatch.setenv("PYTHONPATH", "mine")
        monkeypatch.setenv(compat.ANNOUNCED, "")
        monkeypatch.setattr(command.os, "execv", lambda path, words: started.append((path, words)))
        monkeypatch.setattr(
            command.subprocess, "run", lambda words, check: subprocess.CompletedProcess(words, 0 if not check else 1)
        )
        assert main.main(["compat", "run", "program.py", "--epochs", "3"]) == 0
        assert started == [(sys.executable, [sys.executable, "program.py", "--epochs", "3"])]
        assert os.environ["PYTHONPATH"] == os.pathsep.join([str(compat.SHIMS), "mine"])

    def test_a_script_that_is_missing_is_named_before(self):
        with pytest.raises(MisconfigurationException, match=r"compat run train\.py: there is no such file"):
            command.run(command_line("run", "train.py"))


def command_line(*words: str) -> object:
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    own, rest = command.split(words)
    return parser.parse_args(own, argparse.Namespace(arguments=rest))


class TestEntry:
    @pytest.mark.processes
    def test_it_switches_on_what_has_the_variable_and_breaks_nothing_without_lightlib(self, site_packages, capsys):
        for verb in ("enable", "enable"):
            assert main.main(["compat", verb]) == 0
        assert "Renewed" in capsys.readouterr().out
        (entry,) = site_packages.iterdir()
        asked = (
            "import os, site; site.addsitedir('site-packages'); import lightning; print(lightning.__doc__);"
            "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv)'], check=True)"
        )
        on = programs.interpreter("-c", asked, env=programs.environment(**{command.VARIABLE: "1"}))
        assert "served by lightlib" in on.stdout, on.stderr
        assert on.stderr == f"{FIRST_LINE}\n"
        off = programs.interpreter("-c", asked, env=programs.environment(**{command.VARIABLE: "0"}))
        assert "No module named 'lightning'" in off.stderr
        # lightlib has been removed, the entry stayed
        entry.write_text(entry.read_text().replace(str(compat.SHIMS), str(site_packages / "gone")))
        gone = programs.interpreter("-c", asked, env=programs.environment(**{command.VARIABLE: "1"}))
        assert "No module named 'lightning'" in gone.stderr
        assert "Error processing line" not in gone.stderr

    def test_it_is_removed(self, site_packages, capsys):
        main.main(["compat", "enable"])
        main.main(["compat", "disable"])
        assert list(site_packages.iterdir()) == []
        assert main.main(["compat", "disable"]) == 0
        assert "It is not enabled" in capsys.readouterr().out

    def test_folders_that_cannot_be_written_are_named(self, site_packages, monkeypatch):
        monkeypatch.setattr(command.os, "access", lambda *_: False)
        with pytest.raises(MisconfigurationException) as raised:
            command.run(command_line("enable"))
        assert str(site_packages) in str(raised.value)
        assert "compat run" in str(raised.value)

    def test_the_users_folder_takes_it_if_python_reads_that_one(self, site_packages, monkeypatch):
        users = Path("users").resolve()
        monkeypatch.setattr(command.site, "ENABLE_USER_SITE", True)
        monkeypatch.setattr(command.site, "getusersitepackages", lambda: str(users))
        monkeypatch.setattr(command.os, "access", lambda path, _: path == users.parent)
        assert main.main(["compat", "enable"]) == 0
        assert (users / command.ENTRY).exists()
        assert main.main(["compat", "disable"]) == 0
        assert not (users / command.ENTRY).exists()


class TestStatus:
    def test_nothing_is_switched_on(self, site_packages, capsys):
        assert main.main(["compat", "status"]) == 0
        rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
        assert {name: text.strip() for name, text in rows.items()} == {
            "import lightning gives": "nothing: it is not installed",
            "import pytorch_lightning gives": "nothing: it is not installed",
            "entry at start-up": "none (lightlib compat enable)",
            command.VARIABLE: "not set",
            "installed Lightning": "none",
        }

    def test_it_is_switched_on_next_to_a_real_one(self, site_packages, real, monkeypatch, capsys):
        main.main(["compat", "enable"])
        monkeypatch.setenv(command.VARIABLE, "1")
        monkeypatch.syspath_prepend(str(compat.SHIMS))
        main.main(["compat", "status"])
        out = capsys.readouterr().out
        assert f"import lightning gives          lightlib {__version__}\n" in out
        assert "lightning 2.5.1, not used" in out

    def test_the_real_one_is_used(self, site_packages, real, monkeypatch, capsys):
        Path("packages/lightning").mkdir(parents=True)
        Path("packages/lightning/__init__.py").write_text("")
        monkeypatch.syspath_prepend("packages")
        monkeypatch.setenv(command.VARIABLE, "yes")
        main.main(["compat", "status"])
        out = capsys.readouterr().out
        assert "import lightning gives          lightning 2.5.1 (" in out
        assert "'yes': only 1 switches it on" in out
        assert "not used" not in out

    def test_an_entry_of_another_lightlib_is_named(self, site_packages, capsys):
        (site_packages / command.ENTRY).write_text("import os\n")
        main.main(["compat", "status"])
        assert "of another lightlib (lightlib compat enable renews it)" in capsys.readouterr().out


def test_the_first_line_names_the_lightning_that_is_not_used(real, capsys):
    compat.announce()
    assert capsys.readouterr().err == f"{FIRST_LINE}; the installed lightning 2.5.1 is not used\n"


def test_distributions_that_stand_for_lightlib_are_known():
    assert compat.Distribution("lightning", "2.6.6+lightlib").ours
    assert not compat.Distribution("lightning", "2.6.6").ours
