"""`lightlib doctor --profile`: a program runs with the simple profiler."""

from __future__ import annotations

import os
import sys

import pytest

from lightlib.command.doctor.profile import profile
from lightlib.command.main import main
from lightlib.errors import MisconfigurationException

PROGRAM = """
import sys
import torch, lightlib
from lightlib.demos.boring_classes import BoringModel

trainer = lightlib.Trainer(
    max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    limit_val_batches=0, accelerator="cpu",
)
import warnings
warnings.simplefilter('ignore')
trainer.fit(BoringModel())
print(sys.argv[1:], trainer.global_step, sys.path[0])
raise SystemExit(3)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, "utf-8")
    return path


def test_a_program_runs_with_its_arguments_and_its_bottleneck_is_named(program, capsys, caplog):
    before = list(sys.argv), list(sys.path), dict(os.environ)
    with caplog.at_level("INFO", "lightlib"):
        status = main(["doctor", "--steps", "5", "--profile", str(program), "--lr", "0.1"])
    assert status == 3
    assert capsys.readouterr().out.splitlines()[-1] == f"['--lr', '0.1'] 5 {program.parent}"
    assert "Where the time of training went" in caplog.text
    assert "ottleneck" in caplog.text.splitlines()[-1] + caplog.text.splitlines()[-2]
    assert before == (sys.argv, sys.path, dict(os.environ))


def test_a_program_without_a_run(tmp_path):
    (tmp_path / "none.py").write_text("print(1)", "utf-8")
    with pytest.raises(MisconfigurationException, match=r"none.py ended without a table[\s\S]*profiler='simple'"):
        profile([str(tmp_path / "none.py")], None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--profile", "absent.py"], "absent.py: there is no such file"),
        (["--profile"], "--profile without a script"),
        (["--steps", "3"], "--steps without --profile"),
        (["--json", "--profile", "a.py"], "--json with --profile"),
    ],
)
def test_what_cannot_be_profiled_is_refused(words, message, capsys):
    assert main(["doctor", *words]) == 2
    assert message in capsys.readouterr().err


def test_no_step_is_refused(program, capsys):
    assert main(["doctor", "--steps", "0", "--profile", str(program)]) == 2
    assert "--steps 0" in capsys.readouterr().err
