"""Lightning's cluster environments: classes that give a Trainer the rank of this process."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from lightlib.errors import MisconfigurationException
from lightlib.launch.environment import clusters
from lightlib.launch.environment.environment import Environment, free_port
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


def environment_like(environment: Environment) -> ClusterEnvironment:
    """Return the environment of Lightning's kind that stands for the one lightlib has detected."""
    kinds = {"torchrun": TorchElasticEnvironment, "mpi": MPIEnvironment, "lsf": LSFEnvironment}
    kinds["kubeflow"] = KubeflowEnvironment
    kind = kinds.get(environment.name)
    if kind is not None:
        return kind()
    made = LightningEnvironment()
    made.set_world_size(environment.world_size)
    made.set_global_rank(environment.rank)
    return made


class _Launched(ClusterEnvironment):
    """An environment that a launcher describes by variables; lightlib reads them."""

    find: ClassVar[str]

    def _environment(self) -> Environment:
        known = NAMES[self.find]
        if not any(names.rank in os.environ for names in known):
            raise MisconfigurationException(
                f"{type(self).__name__}: {known[0].title} has not started this process.",
                expected=f"the variables {known[0].rank} and {known[0].size} in the environment.",
                fix=f"start the program by {known[0].title}, or leave {type(self).__name__} out.",
            )
        return getattr(clusters, self.find)() or Environment(name=self.find, launched=True)

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

    @classmethod
    def detect(cls) -> bool:
        """Whether the launcher's variables are set."""
        return getattr(clusters, cls.find)() is not None

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


class TorchElasticEnvironment(_Launched):
    """Processes started by torchrun."""

    find = "torchrun"


class MPIEnvironment(_Launched):
    """Processes started by an mpirun."""

    find = "mpi"


class LSFEnvironment(_Launched):
    """Processes started by LSF's jsrun."""

    find = "lsf"


class KubeflowEnvironment(_Launched):
    """Pods of Kubeflow's operator, one process in each."""

    find = "kubeflow"
