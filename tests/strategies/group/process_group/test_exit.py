"""The process group: a process that was in one ends with the code that its program has chosen."""

from __future__ import annotations

import ipaddress
import os
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from lightlib.accelerators import CPUAccelerator
from lightlib.launch.environment.detect import detect
from lightlib.strategies.group import process_group
from tests.processes import programs
from tests.processes.ranks import ranks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the states of threads")

# gloo's thread waits for Python's lock while Python begins to exit, as can happen on a busy machine
A_PROGRAM = """
import atexit, sys, time
import torch
from lightlib.accelerators import CPUAccelerator
from lightlib.launch.environment.environment import Environment
from lightlib.strategies.group import process_group

def keep_the_lock():
    deadline = time.perf_counter() + 0.5
    while time.perf_counter() < deadline:
        pass

atexit.register(keep_the_lock)  # before the group is made: it is called after what that has registered
process_group._SECONDS_TO_REST = 60.0
process_group.join(Environment("mine", rank=0, world_size=1), CPUAccelerator(), torch.device("cpu"))
while len(process_group._gloo_threads()) < 2:  # a thread gives itself its name when it runs for the first time
    time.sleep(0.001)
kept = torch.distributed.group.WORLD  # as a module under DDP does
sys.setswitchinterval(10.0)  # threads do not take turns
large = torch.ones(1 << 22)
torch.distributed.all_gather([torch.empty_like(large)], large, async_op=True)
sys.exit(143)
"""


@pytest.mark.processes
def test_the_threads_of_gloo_have_let_go_before_python_ends():
    ended = programs.interpreter("-c", A_PROGRAM)  # torch aborts while Python takes objects apart
    assert (ended.returncode, ended.stderr) == (143, "")


def test_threads_that_work_or_wait_for_the_lock_do_not_rest(monkeypatch):
    monkeypatch.setattr(process_group, "_GLOO_THREAD", "stands for it")
    monkeypatch.setattr(process_group, "_SECONDS_TO_REST", 1e5)
    looks, done, look = [], [], process_group._gloo_threads
    monkeypatch.setattr(process_group, "_gloo_threads", lambda: looks.append(look()) or looks[-1])
    read, write = os.pipe()

    def work():
        name_this_thread("stands for it")
        while len(looks) < 10:
            sum(range(1000))
        done.append(True)
        os.read(read, 1)

    thread = threading.Thread(target=work)
    thread.start()
    while not look():
        time.sleep(0.001)
    process_group._let_threads_rest()
    assert done
    os.write(write, b"x")
    thread.join()
    for end in (read, write):
        os.close(end)


@pytest.mark.processes
def test_ranks_at_the_loopback_listen_nowhere_else():
    assert ranks(2, listening_after_joining) == [(2, {"127.0.0.1"}), (1, {"127.0.0.1"})]  # gloo, and the store


def listening_after_joining(rank):
    del os.environ["GLOO_SOCKET_IFNAME"]  # the tests set it
    collectives = process_group.join(detect(None), CPUAccelerator(), torch.device("cpu"))
    found = listening()
    collectives.barrier()
    return len(found), set(found)


def listening():
    """The addresses at which this process listens."""
    own = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            place, state, inode = (line.split()[column] for column in (1, 3, 9))
            if state == "0A" and f"socket:[{inode}]" in own:
                words = [bytes.fromhex(place[start : start + 8])[::-1] for start in range(0, len(place) - 5, 8)]
                found.append(str(ipaddress.ip_address(b"".join(words))))
    return found


def name_this_thread(name):
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


def test_nothing_is_waited_for_without_such_threads(monkeypatch):
    monkeypatch.setattr(process_group, "_GLOO_THREAD", "no such name")
    monkeypatch.setattr(time, "sleep", pytest.fail)
    process_group._let_threads_rest()
