"""`lightlib experiment run`: arguments that do not fit its engine, and the command that continues it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from lightlib.command.experiments.running import command_of
from lightlib.command.main import main

FILE = "name: a\nentrypoint: [python3, train.py]\nsearcher: {name: single, metric: loss}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--workers 0", "--workers is 0."),
        ("--on slurm --workers 0", "--workers is 0."),
        ("--workers 4", "--workers is 4, and this process is one worker."),
        ("--address head:6379", "--address is 'head:6379', and --on local has no address."),
        ("--on kubernetes --address head:6379", "--address is 'head:6379', and --on kubernetes has no address."),
        ("--on slurm --slots 2", "--slots is '2', and with --on slurm the cluster gives each worker its slots."),
        ("--on ray --slots 0,1", "--slots is '0,1', and with --on ray"),
    ],
)
def test_an_argument_that_the_engine_does_not_have_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, capsys, words, message
):
    monkeypatch.chdir(tmp_path)
    Path("search.yaml").write_text(FILE)
    assert main(["experiment", "run", "search.yaml", *words.split()]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Fix: " in printed
    assert [path.name for path in tmp_path.iterdir()] == ["search.yaml"]


def test_the_command_that_continues_has_the_folder_and_the_changes():
    given = argparse.Namespace(file="a b.yaml", context="code", root="runs", config=["name=c"])
    expected = "lightlib experiment run 'a b.yaml' code --root runs --on ray --config name=c"
    assert command_of(given, "--on", "ray") == expected
    given = argparse.Namespace(file="a.yaml", context=None, root="experiments", config=[])
    assert command_of(given) == "lightlib experiment run a.yaml"
