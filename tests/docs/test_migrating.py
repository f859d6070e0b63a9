"""docs/migrating.md, step by step from a checkpoint of Lightning's; the losses are Lightning's."""

from __future__ import annotations

import re
import shlex
import zipfile
from pathlib import Path

import pytest

from lightlib.command import main
from tests.docs.migrating import STORED, commands, val_losses, write_project
from tests.processes import programs


@pytest.fixture
def project():
    """The project after two epochs with Lightning, and the losses of Lightning's next two."""
    write_project(Path())
    with zipfile.ZipFile(STORED) as archive:
        Path("checkpoints").mkdir()
        Path("checkpoints/last.ckpt").write_bytes(archive.read("last.ckpt"))
        return [float(line) for line in archive.read("val_loss.txt").split()]


def line(start: str) -> list[str]:
    """Return the words of the page's command that begins so."""
    return next(shlex.split(one) for one in commands() if one.startswith(start))


def test_check_finds_nothing_that_is_missing(project, capsys):
    assert main.main(line("lightlib compat check")[1:]) == 0
    assert "All of them run here: lightlib compat run PROGRAM." in capsys.readouterr().out


@pytest.mark.processes
def test_the_old_run_is_resumed_with_the_losses_of_lightning(project):
    words = line("lightlib compat run")
    done = programs.interpreter("-m", *words)
    assert done.returncode == 0, done.stderr
    assert "serves as Lightning 2.6" in done.stderr.splitlines()[0]
    assert val_losses(Path()) == pytest.approx(project, rel=1e-6)
    assert {"last.ckpt", "last-v1.ckpt"} <= {path.name for path in Path("checkpoints").iterdir()}
    assert Path("checkpoints/last-v1.ckpt").name in " ".join(line("python train.py fit --config config.yaml --ckpt"))


@pytest.mark.processes
def test_the_swapped_import_trains_to_the_same_losses(project):
    words = line("sed")
    program = words[words.index("-E") + 1]
    for name in words[words.index(program) + 1 :]:
        text = Path(name).read_text()
        for found, instead in re.findall(r"s/(.*?)/(.*?)/g?(?:; |$)", program):
            text = re.sub(found, instead, text)
        assert "lightning" not in text.lower().replace("lightningmodule", "").replace("lightningcli", "").replace(
            "lightningdatamodule", ""
        )
        Path(name).write_text(text)
    done = programs.interpreter(*line("python train.py fit --config config.yaml --ckpt_path checkpoints/last.ckpt")[1:])
    assert done.returncode == 0, done.stderr
    assert val_losses(Path()) == pytest.approx(project, rel=1e-6)
