"""CPU time and memory of processes: of a made /proc, and of a process that counts them itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.machine.load import Load, loads

TICK, PAGE = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
COUNTS = """
import os
data = bytearray(50_000_000)
data[::4096] = b"x" * len(data[::4096])
while sum(os.times()[:2]) < 0.2:
    pass
print(sum(os.times()[:2]), flush=True)
input()
"""


def write(proc, pid, parent, name="python", times=(0, 0, 0, 0), pages=0):
    """Write the file of a process as proc_pid_stat(5) has it."""
    (proc / str(pid)).mkdir()
    fields = [pid, f"({name})", "S", parent, pid, pid, 0, -1, *[0] * 5, *times, 20, 0, 1, 0, 99, 1_000, pages, 0, 0]
    (proc / str(pid) / "stat").write_text(" ".join(map(str, fields)) + "\n")


def test_descendants_count(tmp_path):
    write(tmp_path, 1, 0, times=(1000, 1000, 1000, 1000), pages=1000)
    write(tmp_path, 10, 1, times=(1, 2, 4, 8), pages=3)
    write(tmp_path, 11, 10, name="a (b) 7 8", times=(16, 0, 0, 0), pages=5)
    write(tmp_path, 12, 11, times=(0, 32, 0, 0), pages=7)
    write(tmp_path, 20, 1, times=(64, 0, 0, 0), pages=11)
    (tmp_path / "13").mkdir()  # it has just ended
    (tmp_path / "self").mkdir()
    found = loads([10, 20, 30], tmp_path)
    assert found == {
        10: Load(pytest.approx(63 * TICK), 15 * PAGE),
        20: Load(pytest.approx(64 * TICK), 11 * PAGE),
    }


def test_a_system_without_it(tmp_path):
    with pytest.raises(OSError, match="absent"):
        loads([1], tmp_path / "absent")


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_process_that_counts_itself():
    process = subprocess.Popen([sys.executable, "-c", COUNTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    counted = float(process.stdout.readline())
    found = loads([process.pid])[process.pid]
    process.stdin.write("\n")
    process.stdin.close()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert counted - 4 * TICK <= found.cpu_seconds <= usage.ru_utime + usage.ru_stime + 4 * TICK
    assert 50_000_000 <= found.memory_bytes <= usage.ru_maxrss * 1024 + 2_000_000
