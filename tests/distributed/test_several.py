"""More than one call, more than one Trainer, and the ways to start the program or session."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.distributed.programs import SCRIPTS, VARIABLES, begin, end, run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.timeout(300),
]
LINES = ["fitted {} 1", "fitted again {} 2", "tested {} ['test_loss']", "predicted {} 3", "second trainer {} 3"]
CELLS = """
import sys
sys.path.insert(0, sys.argv[1] if len(sys.argv) > 1 else {folder!r})
import several, torch
class Here(several.Net):
    def on_train_end(self):
        sys.stdout.write(f"trained as {{self.global_rank}} of {{self.trainer.world_size}}\\n")

module, trainer = Here(), several.trainer()
before = module.net.weight.detach().clone()
trainer.fit(module, several.loader(), several.loader())

print("here:", trainer.strategy.launcher, bool((before != module.net.weight).any()), trainer.global_step)
class Broken(several.Net):
    def training_step(self, batch, batch_idx):
        raise ValueError("the sample is broken")

several.trainer().fit(Broken(), several.loader(), several.loader())

print("and again:", len(trainer.predict(module, several.loader())))
"""


def assert_both_say_all(text):
    for rank, tag in ((0, ""), (1, "[rank 1] ")):
        wanted = [tag + line.format(rank) for line in LINES]
        assert [line for line in text.splitlines() if line in wanted] == wanted, text


def test_all_verbs_again_and_a_second_trainer():
    ended = run("several.py")
    assert ended.code == 0, ended.text
    assert_both_say_all(ended.text)
    assert ended.text.count("2 processes by lightlib, rank 0 at 127.0.0.1:") == 1


def test_a_trainer_with_another_number_of_devices():
    ended = run("several.py", "other")
    assert ended.code == 1
    message = "The Trainer asks for devices=3, but lightlib has started 2 processes on this machine"
    assert message in ended.lines[-3]
    assert "fitted again" not in ended.text


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["-X", "dev", "-W", "ignore", "-m", "several"], marks=pytest.mark.slow),
        ["-X", "utf8", "-Oc", "import several; several.main(); assert False"],
    ],
)
def test_modules_and_commands_without_stdin(tmp_path, command):
    shutil.copy(SCRIPTS / "several.py", tmp_path)
    closed = os.open(os.devnull, os.O_RDONLY)
    os.close(closed)
    ended = end(begin(*command, stdin=None, preexec_fn=lambda: os.close(0), cwd=tmp_path))
    assert ended.code == 0, ended.text
    assert_both_say_all(ended.text)


def test_an_interactive_session_makes_copies_of_itself():
    """As in a notebook: `devices=2` alone means ddp_notebook; errors leave the session alive."""
    done = subprocess.run(
        [sys.executable, "-i"],
        input=CELLS.format(folder=str(SCRIPTS)),
        env=VARIABLES,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    text = done.stdout
    assert sorted(re.findall(r"trained as (\d) of 2", text)) == ["0", "1"], text + done.stderr
    assert "here: fork True 3" in text
    assert "ValueError: the sample is broken" in done.stderr
    assert "and again: 3" in text, done.stderr
