"""More than one call, more than one Trainer, and the ways to start the program or session."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.distributed.programs import SCRIPTS, assert_all_end, kill, run
from tests.processes.programs import HANGS_AFTER, environment, interpreter

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.processes,
]
LINES = ["fitted {} 1", "fitted again {} 2", "tested {} ['test_loss']", "predicted {} 3", "second trainer {} 3"]
CELLS = """
import sys
sys.path.insert(0, sys.argv[1] if len(sys.argv) > 1 else {folder!r})
import several, torch, torch._dynamo  # which each process of a run would import
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
print("of the last module:", len(trainer.predict(dataloaders=several.loader())), trainer.model is module)
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
    message = "The Trainer has devices=3, but lightlib has started 2 processes on this machine"
    assert message in ended.lines[-3]
    assert "fitted again" not in ended.text


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["-X", "dev", "-W", "ignore", "-m", "several"], marks=pytest.mark.slow),
        ["-X", "utf8", "-qc", "import several, sys; several.main(); assert sys.flags.utf8_mode and sys.flags.quiet"],
    ],
)
def test_modules_and_commands_without_stdin(tmp_path, command):
    shutil.copy(SCRIPTS / "several.py", tmp_path)
    without_stdin = ["sh", "-c", 'exec "$0" "$@" <&-', sys.executable, *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(without_stdin, env=environment(), start_new_session=True, **pipes)
    try:
        text, _ = process.communicate(timeout=HANGS_AFTER)
    except subprocess.TimeoutExpired:
        kill(process.pid)
        raise
    assert process.returncode == 0, text
    assert_both_say_all(text)
    assert_all_end(process.pid, text)


def test_an_interactive_session_makes_copies_of_itself():
    """As in a notebook: `devices=2` alone means ddp_notebook; errors leave the session alive."""
    done = interpreter("-i", stdin=None, input=CELLS.format(folder=str(SCRIPTS)))
    text = done.stdout
    assert sorted(re.findall(r"trained as (\d) of 2", text)) == ["0", "1"], text + done.stderr
    assert "here: fork True 3" in text
    assert "ValueError: the sample is broken" in done.stderr
    assert "and again: 3" in text, done.stderr
    assert "of the last module: 3 True" in text, done.stderr
