"""Under torchrun its summary comes last: it shows the first failing rank and its traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os, signal, sys, time
from datetime import timedelta
import torch
from torch import distributed
from lightlib.launch.failure import OtherRankError
from lightlib.launch.watch import Watch

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = next(distributed.rendezvous("env://", timeout=timedelta(seconds=60)))[0]
distributed.init_process_group("gloo", store=distributed.PrefixStore("g", store), rank=rank, world_size=size)
watch = Watch(store, rank, size, float(sys.argv[2]))
watch.install()
signal.signal(signal.SIGTERM, lambda *_: watch.request("terminate"))

def train(what):
    if what == "raise" and rank == 1:
        time.sleep(0.5)
        raise ValueError("a sample is broken")
    if what == "sleep" and rank == 1:
        time.sleep(1e5)
    if what.startswith("kill") and rank == 0:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "kill others compute":
        while True:
            time.sleep(0.1)
    distributed.barrier()

watch.start(lambda: (7,), lambda kind: None, lambda: "step 7")
try:
    train(sys.argv[1])
except Exception as error:
    failure = watch.fail(error)
    if failure.rank != rank:
        raise OtherRankError(failure) from None
    raise
finally:
    watch.stop()
print("done", rank)
"""


def torchrun(folder: Path, what: str, timeout: float) -> tuple[int, str, float]:
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    begun = time.monotonic()
    done = subprocess.run(
        [*command, what, str(timeout)],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, time.monotonic() - begun


def root_cause(text: str) -> str:
    return text[text.index("Root Cause (first observed failure):") :]


@pytest.mark.parametrize(
    ("what", "timeout", "rank", "message"),
    [
        ("raise", 60, 1, "ValueError: a sample is broken"),
        ("sleep", 5, 1, r"No progress for 5 s. Rank 1 has been at step 7 in train.py:21 train: `time.sleep\(1e5\)`."),
        ("kill", 60, 0, r"Signal 9 \(SIGKILL\) received by PID"),
        ("kill others compute", 60, 0, r"Signal 9 \(SIGKILL\) received by PID"),
    ],
)
def test_the_summary_of_torchrun_names_the_root_cause(tmp_path, what, timeout, rank, message):
    code, text, seconds = torchrun(tmp_path, what, timeout)
    assert code == 1
    cause = root_cause(text)
    assert re.search(rf"rank      : {rank} \(local_rank: {rank}\)", cause), text
    assert re.search(message, cause), text
    assert seconds < 120  # of which some for starting


def test_a_run_that_ends_well(tmp_path):
    code, text, _ = torchrun(tmp_path, "", 60)
    assert code == 0, text
    assert sorted(re.findall(r"done \d", text)) == ["done 0", "done 1"]
