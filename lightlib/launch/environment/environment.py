"""Environment: the rank of one process among all processes of a run; and the ports of this machine."""

from __future__ import annotations

import itertools
import os
import random
import socket
import sys
from dataclasses import dataclass, fields, replace

from lightlib.errors import LightlibError, MisconfigurationException, wrong_type

EXPORTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
_PORTS = range(10000, 30000)
_TITLES = {
    "torchrun": "torchrun",
    "slurm": "SLURM",
    "mpi": "MPI",
    "kubeflow": "Kubeflow",
    "ray": "Ray Train",
    "lsf": "LSF",
    "variables": "RANK and WORLD_SIZE",
    "local": "lightlib",
}


@dataclass(frozen=True)
class Environment:
    """The rank of this process among all processes of a run.

    Args:
        name: The launcher: ``"torchrun"``, ``"slurm"``, ``"mpi"``, ``"kubeflow"``, ``"lsf"``, ``"ray"``,
            ``"variables"`` (set by hand), ``"local"`` (lightlib itself), or a third party's name.
        rank: The number of this process. Default 0.
        world_size: Number of processes. Default 1.
        local_rank, local_size: The same on this machine. Default 0 and 1.
        node_rank, num_nodes: The number of this machine, and the number of machines. Default 0 and 1.
        address, port: The rendezvous address of rank 0. Port 0 (default) is chosen when the processes are started.
        launched: Whether the processes exist already. If not, lightlib starts the rest of them on this machine.

    Raises:
        ArgumentTypeError: A number is not an int.
        MisconfigurationException: The numbers contradict each other.

    Example:
        >>> environment = Environment("mine", rank=1, world_size=2, local_rank=1, local_size=2, launched=True)
        >>> environment.export()["RANK"], environment.is_local
        ('1', False)
    """

    name: str = "local"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    launched: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (isinstance(value, bool) or not isinstance(value, int)):
                raise wrong_type("Environment", field.name, value, "an int", f"{field.default!r}")
        for number, count in (("rank", "world_size"), ("local_rank", "local_size"), ("node_rank", "num_nodes")):
            if not 0 <= getattr(self, number) < getattr(self, count):
                raise MisconfigurationException(
                    f"Environment({number}={getattr(self, number)}, {count}={getattr(self, count)}).",
                    expected=f"{number} from 0 to {count} - 1.",
                    fix=f"count {number} from 0, and give {count} for all.",
                )
        if self.local_size > self.world_size:
            raise MisconfigurationException(
                f"Environment(local_size={self.local_size}, world_size={self.world_size}).",
                expected="at most as many processes on this machine as in all.",
                fix=f"Environment(world_size={self.local_size * self.num_nodes})",
            )

    @property
    def is_local(self) -> bool:
        """Whether lightlib starts, or has started, the processes of this machine."""
        return self.name == "local" or not self.launched

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def at(self, local_rank: int, port: int | None = None) -> Environment:
        """Return the environment of the process with this local rank, launched."""
        return replace(
            self,
            rank=self.rank - self.local_rank + local_rank,
            local_rank=local_rank,
            port=self.port if port is None else port,
            launched=True,
        )

    def export(self) -> dict[str, str]:
        """Return the variables that torch reads: RANK, WORLD_SIZE, MASTER_ADDR and so on."""
        values = (self.rank, self.world_size, self.local_rank, self.local_size, self.node_rank, self.address, self.port)
        return dict(zip(EXPORTED, map(str, values), strict=True))

    def describe(self) -> str:
        """Return one line for the user: ``"2 processes by torchrun, rank 0 at 127.0.0.1:29500"``."""
        count = f"{self.world_size} process{'es' if self.world_size > 1 else ''}"
        nodes = f" on {self.num_nodes} nodes" if self.num_nodes > 1 else ""
        where = f", rank 0 at {self.address}:{self.port}" if self.world_size > 1 and self.port else ""
        return f"{count}{nodes} by {_TITLES.get(self.name, self.name)}{where}"


class HeldPort:
    """A free TCP port of this machine, drawn from 10000 to 29999 and reserved until it is closed.

    It is not an ephemeral port, so the next connection of another program cannot take it, unlike one from ``bind(0)``
    (RFC 6335 and Linux begin those above 30000). On Linux a socket is bound to it that does not listen. Another socket
    with SO_REUSEADDR can still be bound and listen there, such as that of torch's store; one without cannot, such as
    that of the next HeldPort. Other systems would reject both: there nothing is reserved, and two runs that begin at
    the same time may choose the same port. A port that the user or a launcher has `given` is used as is.
    """

    def __init__(self, given: int = 0) -> None:
        self.port = given
        self._descriptor: int | None = None  # no socket object, for which Python has a warning at its end
        if given:
            return
        first = random.SystemRandom().randrange(len(_PORTS))
        for port in itertools.chain(_PORTS[first:], _PORTS[:first]):
            listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listening.bind(("", port))
            except OSError:
                listening.close()
                continue
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: two could be bound then
            self.port, self._descriptor = port, listening.detach()
            if sys.platform != "linux":
                self.close()
            return
        raise LightlibError(
            f"All ports from {_PORTS[0]} to {_PORTS[-1]} of this machine are in use.",
            expected="a free port for the rendezvous of the processes.",
            fix="end the programs that use them (`ss -ltnp` lists them), or set MASTER_PORT.",
        )

    def close(self) -> None:
        """Release the port."""
        if self._descriptor is not None:
            socket.close(self._descriptor)
            self._descriptor = None


def free_port() -> int:
    """Return a free port as `HeldPort` chooses it, without reserving it."""
    port = HeldPort()
    port.close()
    return port.port


def threads_per_process(local_size: int) -> int | None:
    """Return the number of threads for each process of this machine; None if OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // local_size)
