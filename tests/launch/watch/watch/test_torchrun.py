"""Under torchrun its summary comes last: it shows the first failing rank and its traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.processes import programs

pytestmark = pytest.mark.processes
# Torchrun sends SIGTERM to the remaining ranks once it notices the failed rank; after that, none waits for a reason.
PROGRAM = """
import json, os, signal, sys, threading, time
from dataclasses import replace
from torch import distributed
from lightlib.launch.watch.failure import OtherRankError
from lightlib.launch.watch.watch import Watch
from tests.launch.watched_ranks import PATIENT, is_at

what, timeout, waits = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = next(distributed.rendezvous("env://"))[0]
distributed.init_process_group("gloo", store=distributed.PrefixStore("g", store), rank=rank, world_size=size)
watch = Watch(store, rank, size, timeout, timing=replace(PATIENT, **waits))
watch.install()

def terminated(*_):
    watch.timing = replace(watch.timing, reason=0.0)
    watch.request("terminate")

def tell_when_asleep(thread):
    while not is_at(rank, thread, "time.sleep(1e5)"):
        time.sleep(0.002)
    store.set("rank 1 is asleep", "")

def train():
    if what == "raise" and rank == 1:
        store.wait(["rank 0 trains"])
        raise ValueError("a sample is broken")
    if what == "sleep" and rank == 1:
        threading.Thread(target=tell_when_asleep, args=[threading.get_ident()], daemon=True).start()
        time.sleep(1e5)
    if what.startswith("kill") and rank == 0:
        store.wait(["rank 1 trains"])
        os.kill(os.getpid(), signal.SIGKILL)
    store.set(f"rank {rank} trains", "")
    if what == "kill during compute":
        while True:
            time.sleep(0.1)
    distributed.barrier()

signal.signal(signal.SIGTERM, terminated)
if what == "sleep" and rank == 0:
    store.wait(["rank 1 is asleep"])
watch.start(lambda: (7,), lambda kind: None, lambda: "step 7")
try:
    train()
except Exception as error:
    failure = watch.fail(error)
    if failure.rank != rank:
        raise OtherRankError(failure) from None
    raise
finally:
    watch.stop()
print(f"done {rank}\\n", end="")  # in one piece: the ranks share the pipe
"""
LINE = next(number for number, text in enumerate(PROGRAM.splitlines(), 1) if text.strip() == "time.sleep(1e5)")
LONG = programs.HANGS_AFTER


def torchrun(folder: Path, what: str, timeout: float, **waits: float) -> tuple[int, str]:
    (folder / "train.py").write_text(PROGRAM)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    done = programs.run(*command, what, str(timeout), json.dumps(waits), cwd=folder, starts=2)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("what", "timeout", "waits", "rank", "message"),
    [
        ("raise", LONG, {}, 1, "ValueError: a sample is broken"),
        (
            "sleep",
            0.2,
            {"short_grace": 0.1},
            1,
            rf"No progress for 0.2 s. Rank 1 has been at step 7 in train.py:{LINE} train: `time.sleep\(1e5\)`.",
        ),
        ("kill", LONG, {}, 0, r"Signal 9 \(SIGKILL\) received by PID"),
        ("kill during compute", LONG, {"answer": 0.1, "grace": 0.1}, 0, r"Signal 9 \(SIGKILL\) received by PID"),
    ],
)
def test_the_summary_of_torchrun_names_the_root_cause(tmp_path, what, timeout, waits, rank, message):
    code, text = torchrun(tmp_path, what, timeout, **waits)
    assert code == 1
    _, found, cause = text.partition("Root Cause (first observed failure):")
    assert found, text
    assert re.search(rf"rank      : {rank} \(local_rank: {rank}\)", cause), text
    assert re.search(message, cause), text


def test_a_run_that_ends_well(tmp_path):
    code, text = torchrun(tmp_path, "", LONG)
    assert code == 0, text
    assert sorted(re.findall(r"done \d", text)) == ["done 0", "done 1"]
