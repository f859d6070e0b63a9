"""Signals that reach DataLoader workers, forked and spawned: the run continues to its next step."""

from __future__ import annotations

import contextlib
import copy
import os
import signal

import pytest
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker

from lightlib.data.resumable_loader import resumable_loader
from tests.processes import programs

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")]


_SPAWNED = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader
from tests.runs.plain import Net
from lightlib.core.trainer import Trainer

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, i):
        time.sleep(0.01)
        return torch.ones(6), 0

class Interrupting(Net):
    def training_step(self, batch, batch_idx):
        if batch_idx == 2:
            os.killpg(0, signal.SIGINT)  # as Ctrl-C in a terminal: all processes get it
        return super().training_step(batch, batch_idx)

if __name__ == "__main__":
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=sys.argv[1], accumulate_grad_batches=16)
    trainer.fit(Interrupting(), DataLoader(Slow(), 2, num_workers=1, multiprocessing_context="spawn"))
"""


@pytest.mark.skipif(os.name != "posix", reason="needs process groups")
def test_ctrl_c_within_an_accumulation_window_with_spawned_workers(tmp_path):
    (tmp_path / "script.py").write_text(_SPAWNED)
    done = programs.run(tmp_path / "script.py", tmp_path)
    assert done.returncode == 130, done.stderr
    assert "after 16 of its batches (global_step=1)" in done.stderr
    assert (tmp_path / "checkpoints" / "interrupted.ckpt").exists()


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="needs to know who sent a signal")
def test_a_sigterm_to_all_processes_leaves_the_workers_to_the_run_until_it_has_left(tmp_path):
    """As when SLURM ends a job: the run stops after the accumulation window, saved, without dead workers."""
    kill = "if os.fork() == 0: os.killpg(0, signal.SIGTERM); os._exit(0)"
    script = _SPAWNED.replace("os.killpg(0, signal.SIGINT)  # as Ctrl-C in a terminal: all processes get it", "pass")
    script = script.replace("            pass\n", f"            {kill}\n").replace('"spawn"', '"fork"')
    (tmp_path / "script.py").write_text(script)
    done = programs.run(tmp_path / "script.py", tmp_path)
    assert done.returncode == 143, done.stderr
    assert "after 16 of its batches (global_step=1)" in done.stderr
    assert (tmp_path / "checkpoints" / "interrupted.ckpt").exists()


_FORKED = """
import os, signal
from lightlib.core.run.signals import Signals
signals = Signals()
asks, asked = os.pipe()
answers, answered = os.pipe()
with signals.noted():
    child = os.fork()
    if child == 0:
        os.write(answered, b"begun")
        os.write(answered, os.read(asks, 9))  # waits to be asked
        os._exit(0)
    assert os.read(answers, 9) == b"begun"
    os.kill(child, signal.{name})
    if {lives}:
        os.write(asked, b"lives")
        print(os.read(answers, 9))
    print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("name", "lives", "said"),
    [("SIGTERM", False, "15\n"), ("SIGINT", True, "b'lives'\n0\n")],
    ids=["SIGTERM", "SIGINT"],
)
def test_signals_of_forked_workers(name, lives, said):
    """A worker can be terminated, and lives through a Ctrl-C until the run has left, without a word."""
    done = programs.run("-c", _FORKED.format(name=name, lives=lives))
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


class Asked(Dataset):
    """Each sample lists the signals that its worker blocks."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, []))


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="needs to know who sent a signal")
@pytest.mark.parametrize("kind", [DataLoader, type("Own", (DataLoader,), {})])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_worker_that_has_just_been_forked_leaves_it(monkeypatch, kind, number):
    begin = worker._worker_loop

    def struck(*args):
        os.kill(os.getpid(), number)  # before anything of ours has run in it
        begin(*args)

    monkeypatch.setattr(worker, "_worker_loop", struck)
    given = kind(Asked(), None, num_workers=1)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    for loader in (resumable_loader(given), resumable_loader(copy.copy(given))):
        assert list(loader) == [[signal.SIGTERM]] * 4  # which waits for its own thread
        assert isinstance(loader, kind)
        assert type(loader).__name__ == kind.__name__
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert type(given) is kind


_STARTED = """
import multiprocessing, signal, sys
from torch.utils.data import DataLoader, Dataset
from lightlib.data.resumable_loader import resumable_loader

def blocked():
    return sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, []))

class Data(Dataset):
    def __reduce__(self):
        return started, ()  # which a worker calls before anything of ours has run in it
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return self.at_start

def started():
    data = Data()
    data.at_start = blocked()
    return data

def report(queue):
    queue.put(blocked())

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    print(*resumable_loader(DataLoader(Data(), None, num_workers=1, multiprocessing_context=context)))
    queue = context.Queue()
    process = context.Process(target=report, args=(queue,))
    process.start()
    print(queue.get(), blocked())
    process.join()
"""


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="needs to know who sent a signal")
@pytest.mark.parametrize(
    ("method", "at_start"),
    [
        ("spawn", sorted(map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)))),
        ("forkserver", []),
    ],
)
def test_processes_of_the_users_own_block_nothing(tmp_path, method, at_start):
    program = tmp_path / "program.py"
    program.write_text(_STARTED)
    done = programs.run(program, method)
    assert (done.returncode, done.stdout.splitlines()) == (0, [str(at_start), "[] []"]), done.stderr


_FAILS = """
import sys
from torch.utils.data import DataLoader, Dataset
from lightlib.data.resumable_loader import resumable_loader

class Data(Dataset):
    def __len__(self):
        return 9
    def __getitem__(self, index):
        raise ValueError("no such sample")

if __name__ == "__main__":
    print(*resumable_loader(DataLoader(Data(), None, num_workers=1, multiprocessing_context=sys.argv[1])))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_program_ends_whose_data_set_fails(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(_FAILS)
    done = programs.run(program, method)
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (1, "ValueError: no such sample")


_READS_FOR_LONG = """
import os, sys, time
from torch.utils.data import DataLoader, Dataset
from lightlib.data.resumable_loader import resumable_loader

class Long(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        os.write(1, f"{os.getpid()}\\n".encode())
        time.sleep(3600)

if __name__ == "__main__":
    next(iter(resumable_loader(DataLoader(Long(), num_workers=2, multiprocessing_context=sys.argv[1]))))
"""


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="no thread of the worker waits for signals")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_does_not_outlive_a_killed_run(tmp_path, method):
    """Also within a sample: it has the sockets of its run, by which other ranks would see that this one has ended."""
    program = tmp_path / "program.py"
    program.write_text(_READS_FOR_LONG)
    running = programs.Program(program, method)
    workers = [int(running.stdout.readline()) for _ in range(2)]
    os.kill(running.pid, signal.SIGKILL)
    try:
        out, _ = running.communicate()  # ends with the last process that has the streams
    finally:
        for worker_pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker_pid, signal.SIGKILL)
    assert not out
