"""Lightning's cluster environments: classes that give a Trainer the rank of this process."""

from __future__ import annotations

import os
import socket
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from lightlib import report
from lightlib.errors import MisconfigurationException
from lightlib.launch.environment import clusters
from lightlib.launch.environment.environment import Environment, free_port
from lightlib.launch.environment.read_variables import integer, required
from lightlib.launch.environment.slurm import SLURMEnvironment
from lightlib.launch.environment.variables import NAMES
from lightlib.strategies.plugin import StrategyPlugin

if TYPE_CHECKING:
    from lightlib.strategies.strategy import Strategy

__all__ = [
    "ClusterEnvironment",
    "KubeflowEnvironment",
    "LSFEnvironment",
    "LightningEnvironment",
    "MPIEnvironment",
    "TorchElasticEnvironment",
]


class ClusterEnvironment(StrategyPlugin):
    """Base of environments of users, passed as ``Trainer(plugins=[…])``."""

    def attach_to(self, strategy: Strategy) -> None:
        """Take the number of processes and the rank from `strategy`, if lightlib starts the processes."""
        if not self.creates_processes_externally or strategy.environment.name == "local":
            self.set_world_size(strategy.world_size)
            self.set_global_rank(strategy.global_rank)
        strategy.extend(environment=self)

    @property
    @abstractmethod
    def creates_processes_externally(self) -> bool:
        """Whether a launcher has started the processes; if not, lightlib does."""

    @property
    @abstractmethod
    def main_address(self) -> str:
        """The address at which all processes meet rank 0."""

    @property
    @abstractmethod
    def main_port(self) -> int:
        """Its port."""

    @staticmethod
    @abstractmethod
    def detect() -> bool:
        """Whether this process runs in such an environment."""

    @abstractmethod
    def world_size(self) -> int:
        """Return the number of processes."""

    @abstractmethod
    def set_world_size(self, size: int) -> None:
        """Take the number of processes from the Trainer, if it starts them."""

    @abstractmethod
    def global_rank(self) -> int:
        """Return the rank of this process among all."""

    @abstractmethod
    def set_global_rank(self, rank: int) -> None:
        """Take the rank from the Trainer, if it starts the processes."""

    @abstractmethod
    def local_rank(self) -> int:
        """Return the rank of this process on its machine."""

    @abstractmethod
    def node_rank(self) -> int:
        """Return the number of this machine."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Raise if the Trainer's arguments do not fit; the base accepts all."""

    def teardown(self) -> None:
        """Undo the environment's settings."""


ClusterEnvironment.register(SLURMEnvironment)


class LightningEnvironment(ClusterEnvironment):
    """Processes that lightlib starts, on this machine or on several with MASTER_ADDR and NODE_RANK set."""

    def __init__(self) -> None:
        self._size, self._rank, self._port = 1, 0, 0

    @property
    def creates_processes_externally(self) -> bool:
        """Whether LOCAL_RANK is set: this process was started as one of several."""
        return "LOCAL_RANK" in os.environ

    @property
    def main_address(self) -> str:
        """MASTER_ADDR, or this machine."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """MASTER_PORT, or a free port."""
        self._port = self._port or int(os.environ.get("MASTER_PORT", "0")) or free_port()
        return self._port

    @staticmethod
    def detect() -> bool:
        """Return True: it needs no launcher."""
        return True

    def world_size(self) -> int:
        """Return the number that the Trainer has set, 1 before."""
        return self._size

    def set_world_size(self, size: int) -> None:
        """Take the number of processes."""
        self._size = size

    def global_rank(self) -> int:
        """Return the rank that the Trainer has set, 0 before."""
        return self._rank

    def set_global_rank(self, rank: int) -> None:
        """Take the rank."""
        self._rank = rank

    def local_rank(self) -> int:
        """Return LOCAL_RANK, 0 without."""
        return int(os.environ.get("LOCAL_RANK", "0"))

    def node_rank(self) -> int:
        """Return NODE_RANK or GROUP_RANK, 0 without."""
        return int(os.environ.get("NODE_RANK", os.environ.get("GROUP_RANK", "0")))

    def teardown(self) -> None:
        """Remove WORLD_SIZE."""
        os.environ.pop("WORLD_SIZE", None)


def environment_like(environment: Environment) -> ClusterEnvironment:
    """Return an environment with Lightning's methods for the one that lightlib has detected."""
    if environment.name == "slurm":
        return cast("ClusterEnvironment", SLURMEnvironment())
    kinds: dict[str, Callable[[], ClusterEnvironment]]
    kinds = {"torchrun": TorchElasticEnvironment, "mpi": MPIEnvironment, "lsf": LSFEnvironment}
    kinds["kubeflow"] = KubeflowEnvironment
    kind = kinds.get(environment.name)
    if kind is not None:
        return kind()
    lightning_environment = LightningEnvironment()
    lightning_environment.set_world_size(environment.world_size)
    lightning_environment.set_global_rank(environment.rank)
    return lightning_environment


class _Launched(ClusterEnvironment):
    """An environment that a launcher describes by variables; lightlib reads them."""

    find: ClassVar[str]

    def _environment(self) -> Environment:
        self._check()
        return getattr(clusters, self.find)() or Environment(name=self.find, launched=True)

    def _check(self) -> None:
        variable_names = NAMES[self.find]
        if not any(names.rank in os.environ for names in variable_names):
            raise MisconfigurationException(
                f"{type(self).__name__}: {variable_names[0].title} has not started this process.",
                expected=f"the variables {variable_names[0].rank} and {variable_names[0].size} in the environment.",
                fix=f"start the program by {variable_names[0].title}, or leave {type(self).__name__} out.",
            )

    def _number(self, variable: str) -> int:
        """Return a variable of the launcher; without the launcher, the error that names its variables."""
        if variable not in os.environ:
            self._check()
        return integer(os.environ, variable, NAMES[self.find][0].title)

    @property
    def creates_processes_externally(self) -> bool:
        """Return True."""
        return True

    @property
    def main_address(self) -> str:
        """The host of rank 0."""
        return self._environment().address

    @property
    def main_port(self) -> int:
        """The port of rank 0."""
        return self._environment().port

    def world_size(self) -> int:
        """Return the number of processes."""
        return self._environment().world_size

    def set_world_size(self, size: int) -> None:
        """Leave it to the launcher."""

    def global_rank(self) -> int:
        """Return the rank of this process."""
        return self._environment().rank

    def set_global_rank(self, rank: int) -> None:
        """Leave it to the launcher."""

    def local_rank(self) -> int:
        """Return the rank of this process on its machine."""
        return self._environment().local_rank

    def node_rank(self) -> int:
        """Return the number of this machine."""
        return self._environment().node_rank


class _ByVariables(_Launched):
    """An environment with one set of variables: a missing one is an error that names it."""

    def world_size(self) -> int:
        """Return the launcher's variable."""
        return self._number(NAMES[self.find][0].size)

    def global_rank(self) -> int:
        """Return the launcher's variable."""
        return self._number(NAMES[self.find][0].rank)

    def local_rank(self) -> int:
        """Return the launcher's variable."""
        return self._number(NAMES[self.find][0].local_rank[0])


class TorchElasticEnvironment(_ByVariables):
    """Processes started by torchrun."""

    find = "torchrun"

    @staticmethod
    def detect() -> bool:
        """Whether torchrun has started this process."""
        return "TORCHELASTIC_RUN_ID" in os.environ

    @property
    def main_address(self) -> str:
        """MASTER_ADDR; without it 127.0.0.1, with a warning."""
        return self._or_default("MASTER_ADDR", "127.0.0.1", "localhost")

    @property
    def main_port(self) -> int:
        """MASTER_PORT; without it 12910, with a warning."""
        return int(self._or_default("MASTER_PORT", "12910", "12910"))

    def node_rank(self) -> int:
        """Return GROUP_RANK, 0 without."""
        return int(os.environ.get("GROUP_RANK", "0"))

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Raise if the Trainer's arguments make another number of processes."""
        if num_devices * num_nodes != self.world_size():
            raise MisconfigurationException(
                f"devices={num_devices} and num_nodes={num_nodes}, but torchrun has started {self.world_size()} "
                "processes.",
                expected="devices x num_nodes processes.",
                fix="leave out devices and num_nodes, or start torchrun with --nproc-per-node and --nnodes of them.",
            )

    @staticmethod
    def _or_default(variable: str, default: str, name: str) -> str:
        if variable not in os.environ:
            report.warn(f"{variable} environment variable is not defined. Set as {name}")
            os.environ[variable] = default
        return os.environ[variable]


class MPIEnvironment(_Launched):
    """Processes started by an mpirun, by its variables: mpi4py is not needed."""

    find = "mpi"

    @staticmethod
    def detect() -> bool:
        """Whether an mpirun has started this process as one of several."""
        return clusters.mpi() is not None


class LSFEnvironment(_ByVariables):
    """Processes started by LSF's jsrun; the rank file of LSB_DJOB_RANKFILE, if there is one, lists the hosts."""

    find = "lsf"

    @staticmethod
    def detect() -> bool:
        """Whether jsrun has started this process."""
        needed = {"LSB_JOBID", "LSB_DJOB_RANKFILE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_SIZE"}
        return needed.issubset(os.environ)

    @property
    def main_address(self) -> str:
        """The first compute host of the rank file; without one as lightlib finds it."""
        hosts = self._hosts()
        return hosts[0] if hosts else super().main_address

    @property
    def main_port(self) -> int:
        """MASTER_PORT, else one derived from LSB_JOBID."""
        if "MASTER_PORT" in os.environ:
            return self._number("MASTER_PORT")
        return self._number("LSB_JOBID") % 1000 + 10000

    def node_rank(self) -> int:
        """Return the place of this machine among the hosts of the rank file; without one as lightlib finds it."""
        hosts, name = list(dict.fromkeys(self._hosts())), socket.gethostname()
        if not hosts:
            return super().node_rank()
        if name not in hosts:
            raise MisconfigurationException(
                f"This machine, {name!r}, is not among the compute hosts {hosts} of LSB_DJOB_RANKFILE.",
                expected="a rank file of this job: the launch host, then the host of each process.",
                fix="start the program with jsrun in the job, or leave LSFEnvironment out.",
            )
        return hosts.index(name)

    @staticmethod
    def _hosts() -> list[str]:
        """Return the compute hosts: all lines of the rank file but the first, which is the launch host's."""
        path = os.environ.get("LSB_DJOB_RANKFILE")
        if path is None:
            return []
        if not path or not Path(path).is_file():
            raise MisconfigurationException(
                f"The environment variable LSB_DJOB_RANKFILE is {path!r}.",
                expected="the path of a file with a host in each line.",
                fix="start the program with jsrun in a job of LSF, or unset LSB_DJOB_RANKFILE.",
            )
        return [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()][1:]


class KubeflowEnvironment(_ByVariables):
    """Pods of Kubeflow's operator, one process in each."""

    find = "kubeflow"

    @staticmethod
    def detect() -> bool:
        """Raise: it is chosen by passing it.

        Raises:
            NotImplementedError: Always, as in Lightning.
        """
        raise NotImplementedError("The Kubeflow environment can't be detected automatically.")

    @property
    def main_address(self) -> str:
        """Return MASTER_ADDR."""
        return required(os.environ, "MASTER_ADDR", "Kubeflow", "<host of rank 0>")

    @property
    def main_port(self) -> int:
        """Return MASTER_PORT."""
        return self._number("MASTER_PORT")

    def local_rank(self) -> int:
        """Return 0: a pod has one process."""
        return 0

    def node_rank(self) -> int:
        """Return RANK."""
        return self.global_rank()
