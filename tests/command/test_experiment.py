"""Command lines of `lightlib experiment` that are refused."""

from __future__ import annotations

import pytest

pytest.importorskip("optuna")

from lightlib.command.main import main


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
