"""A SLURM cluster of one machine, from the system's packages, of this test alone."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "squeue", "sinfo")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=30
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Return why no cluster can be started here; empty if one can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"SLURM is not installed (apt install slurmctld slurmd munge): {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "SLURM's daemons need root here"


class Cluster:
    """One controller and one node, on ports of the loopback interface."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="lightlib-sl-"))
        self.variables = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        (self.folder / "spool").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(1024))
        values = {"host": socket.gethostname().partition(".")[0], "folder": self.folder, "cpus": os.cpu_count()}
        (self.folder / "slurm.conf").write_text(CONFIG.format(**values, ports=_free_ports()))
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._daemons = []
        self._start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files)
        self._until((self.folder / "munge.socket").exists)
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D")
        self._until(lambda: "idle" in self.command("sinfo", "--noheader"))

    def command(self, *words) -> str:
        """Run a command of SLURM, and return its output."""
        done = subprocess.run(
            list(map(str, words)), env={**os.environ, **self.variables}, check=False, capture_output=True, text=True
        )
        return done.stdout + done.stderr

    def _start(self, name, *options):
        with (self.folder / f"{name}.out").open("ab") as log:
            environment = {**os.environ, **self.variables}
            words = [shutil.which(name), *options]
            self._daemons.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log, cwd=self.folder))

    def _until(self, condition):
        end = time.monotonic() + 120
        while not condition():
            logs = "".join(path.read_text() for path in sorted(self.folder.glob("*.out")))
            assert all(one.poll() is None for one in self._daemons), logs
            assert time.monotonic() < end, logs
            time.sleep(0.1)

    def close(self):
        self.command("scancel", "--full", "--user=root")
        for one in reversed(self._daemons):
            one.kill()
            one.wait(60)
        shutil.rmtree(self.folder)


def _free_ports() -> list[int]:
    sockets = [socket.socket() for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
