"""`lightlib init`: a project that runs and passes its tests at once, written fully or not at all."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightlib.command import init
from lightlib.command.main import main
from lightlib.errors import MisconfigurationException, UnknownNameError

ROOT = Path(__file__).resolve().parents[2]
FILES = [".gitignore", "README.md", "config.yaml", "data.py", "model.py", "test_project.py"]
SMALL = {
    "max_epochs: 8": "max_epochs: 2",
    "log_every_n_steps: 10": "log_every_n_steps: 1",
    "train_size: 4000": "train_size: 64",
    "val_size: 1000": "val_size: 32",
}


def written(folder, template="classifier"):
    init.write(Path(folder), template)
    return Path(folder)


def commands(readme):
    """Return the commands in the code blocks of a README."""
    blocks = re.findall(r"^```\n(.*?)^```$", readme.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def in_a_shell(command, folder):
    """Run a command as it is written, with this interpreter and this lightlib."""
    python = f'"{sys.executable}"'
    command = re.sub(r"^lightlib ", f"{python} -m lightlib ", re.sub(r"^python ", f"{python} ", command))
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.run(
        command, shell=True, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Make a small copy of the default project the current folder; forget its modules afterwards."""
    folder = written(tmp_path / "project")
    config = folder / "config.yaml"
    text = config.read_text()
    for usual, small in SMALL.items():
        assert usual in text
        text = text.replace(usual, small)
    config.write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    for name in ("data", "model"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("template", init.TEMPLATES)
def test_each_template_is_a_whole_project(template):
    folder = written("project", template)
    more = ["search.yaml"] if template == "search" else []
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES + more)
    for path in folder.glob("*.py"):
        compile(path.read_text(), path.name, "exec")
    assert "python -m pytest" in commands(folder / "README.md")
    values = re.findall(r"^ +-? ?(\w+): +\S", (folder / "config.yaml").read_text(), re.MULTILINE)
    explained = re.findall(r"^ +-? ?(\w+): +\S.* # ", (folder / "config.yaml").read_text(), re.MULTILINE)
    assert {name for name in values if name not in explained} <= {"class_path", "mode"}


def test_the_templates_are_all_that_is_shipped():
    assert {path.name for path in init._FOLDER.iterdir()} == {*init.TEMPLATES, ".gitignore-tpl"}
    assert all(path.name.endswith(init._ENDING) for path in init._FOLDER.glob("*/*"))


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("ruff", path=Path(sys.executable).parent) is None, reason="needs ruff: `make check`")
@pytest.mark.parametrize("template", init.TEMPLATES)
def test_the_code_is_in_the_style_of_the_house(template):
    folder = written("project", template)
    style = [f"--config={ROOT / 'pyproject.toml'}", "--no-cache"]
    check = ["check", *style, "--config", "lint.isort.known-first-party=['data', 'model']", "--ignore=D103,INP001,N812"]
    for options in (check, ["format", "--check", *style]):
        ruff = [Path(sys.executable).parent / "ruff", *options]
        done = subprocess.run([*ruff, folder], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_it_says_what_was_written_and_what_comes_next(capsys):
    assert main(["init", "my project", "--template", "lm"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Wrote a small transformer that writes text, character by character, to /")
    assert [line.strip() for line in said.splitlines() if line.startswith("  ")] == [
        *FILES,
        "cd 'my project'",
        "lightlib fit --config config.yaml",
        "python -m pytest",
    ]


def test_it_writes_here_by_default(capsys):
    assert main(["init"]) == 0
    assert sorted(os.listdir()) == FILES
    assert "cd " not in capsys.readouterr().out
    assert "class Classifier" in Path("model.py").read_text()


def test_folders_above_are_made():
    assert sorted(path.name for path in written("a/b/c").iterdir()) == FILES


@pytest.mark.parametrize("there", ["config.yaml", ".gitignore"])
def test_nothing_is_overwritten(there, capsys):
    Path("mine").mkdir()
    Path("mine", there).symlink_to("nowhere")
    assert main(["init", "mine"]) == 2
    said = capsys.readouterr()
    assert re.search(
        rf"mine' already has {re.escape(there)}\.\n  Expected: .*\n  Fix: lightlib init my_project", said.err
    )
    assert os.listdir("mine") == [there]
    assert said.out == ""


def test_an_unknown_template():
    with pytest.raises(UnknownNameError, match=r"Unknown template 'clasifier'. Did you mean 'classifier'\?") as caught:
        init.write(Path("project"), "clasifier")
    assert "Fix: lightlib init project --template classifier" in str(caught.value)
    assert os.listdir() == []


@pytest.mark.parametrize("folder", ["file", "file/project"])
def test_a_folder_that_is_a_file(folder):
    Path("file").write_text("mine")
    with pytest.raises(
        MisconfigurationException, match=rf"cannot be written to '{folder}'.*\n.*Expected.*\n.*Fix"
    ) as caught:
        init.write(Path(folder), "classifier")
    assert "Nothing was written" in str(caught.value)
    assert Path("file").read_text() == "mine"


def test_a_failure_half_way_leaves_nothing(monkeypatch):
    opened = Path.open

    def full(path, mode="r", *rest):
        if path.name == "data.py":
            raise OSError(28, "No space left on device")
        return opened(path, mode, *rest)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(MisconfigurationException, match="No space left on device"):
        init.write(Path("a/b"), "classifier")
    assert os.listdir() == []


def test_the_arguments():
    parser = argparse.ArgumentParser()
    init.add_arguments(parser)
    assert vars(parser.parse_args([])) == {"words": [], "template": "classifier"}
    assert "gan: two networks" in " ".join(parser.format_help().split())


def test_a_template_before_the_folder(capsys):
    assert main(["init", "search", "my_search"]) == 0
    assert "  lightlib experiment run search.yaml" in capsys.readouterr().out
    assert Path("my_search/search.yaml").is_file()
    with pytest.raises(MisconfigurationException, match="lightlib init got 3 words: a b c"):
        init.run(argparse.Namespace(words=["a", "b", "c"], template="lm"))


def test_the_commands_of_the_readme(project, capsys):
    """All commands but pytest, with less data, in this process."""
    done = [command.split()[1:] for command in commands(project / "README.md") if command.startswith("lightlib ")]
    assert [words[0] for words in done] == ["fit", "fit", "fit", "test", "predict", "plot", "fit", "fit"]
    for words in done:
        assert main(words) == 0, (words, capsys.readouterr())
    (outputs,) = Path().rglob("predictions/*.pt")
    model = sys.modules["model"].Classifier.load_from_checkpoint("lightning_logs/version_0/checkpoints/best.ckpt")
    pictures, _ = sys.modules["data"].draw(1000, 0.3, 2).tensors
    with torch.no_grad():
        assert torch.cat(torch.load(outputs)).equal(model.net(pictures).argmax(dim=1))
    runs = sorted(path.name for path in Path("lightning_logs").iterdir())
    assert runs == ["version_0", "version_1", "version_2", "version_3", "version_4"]
    assert Path("lightning_logs/version_0/curves.png").stat().st_size > 0
    assert "test_accuracy" in capsys.readouterr().out


def test_the_saved_configuration_repeats_the_run(project):
    assert main(["fit", "--config", "config.yaml"]) == 0
    assert main(["fit", "--config", "lightning_logs/version_0/config.yaml"]) == 0
    one, other = (torch.load(f"lightning_logs/version_{n}/checkpoints/last.ckpt")["state_dict"] for n in (0, 1))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow  # its parts are tested above, and `test_a_newcomer` runs it as well
def test_the_tests_of_the_default_project():
    done = in_a_shell("python -m pytest -q -W error", written("project"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("template", init.TEMPLATES)
def test_a_newcomer(template):
    """All commands of the README, unchanged and in order."""
    folder = written("project", template)
    said = {}
    for command in commands(folder / "README.md"):
        done = in_a_shell(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        said[" ".join(command.split()[1 : 3 if "experiment" in command else 2])] = done.stdout
    if template == "search":
        assert "12 completed" in said["experiment run"]
        return
    found = dict(re.findall(r"(test_\w+) +([\d.]+)", said["test"]))
    if template == "classifier":
        assert float(found["test_accuracy"]) > 0.9
    elif template == "lm":
        assert float(found["test_loss"]) < 2
    else:
        assert (float(found["test_heaps"]), float(found["test_good"]) > 0.6) == (8, True)
