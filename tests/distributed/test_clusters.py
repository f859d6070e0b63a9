"""Processes that a cluster has started: they rendezvous by its variables alone, and train as one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
import torch

from lightlib.errors import LightlibError
from lightlib.launch.environment import environment as place
from lightlib.launch.environment.detect import detect
from lightlib.launch.environment.environment import EXPORTED, HeldPort
from tests.distributed.test_numbers import assert_near, loader, state_of, trainer_of
from tests.distributed.user import BATCH, Net, plain_loop
from tests.processes.ranks import ranks

SLURM = {
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_NNODES": "1",
    "SLURM_JOB_NODELIST": "localhost",
    "SLURM_PROCID": "{rank}",
    "SLURM_LOCALID": "{rank}",
    "SLURM_NODEID": "0",
}
CLUSTERS: dict[str, tuple[str, dict[str, str]]] = {
    "srun": ("slurm", {**SLURM, "SLURM_JOB_ID": "{job}"}),
    "srun on two nodes": (
        "slurm",
        {**SLURM, "SLURM_JOB_ID": "{job}", "SLURM_NNODES": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "{rank}"},
    ),
    "Open MPI": (
        "mpi",
        {
            "OMPI_COMM_WORLD_RANK": "{rank}",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": "prterun-{job}@1",
        },
    ),
    "MPICH": (
        "mpi",
        {
            "PMI_RANK": "{rank}",
            "PMI_SIZE": "2",
            "PMI_LOCAL_RANK": "{rank}",
            "PMI_LOCAL_SIZE": "2",
            "PMI_JOBID": "{job}",
        },
    ),
    "jsrun": (
        "lsf",
        {
            "JSM_NAMESPACE_RANK": "{rank}",
            "JSM_NAMESPACE_SIZE": "2",
            "JSM_NAMESPACE_LOCAL_RANK": "{rank}",
            "JSM_NAMESPACE_LOCAL_SIZE": "2",
            "LSB_JOBID": "{job}",
        },
    ),
}

pytestmark = pytest.mark.processes


class OwnCluster:
    """A user's class with the methods of Lightning's ClusterEnvironment."""

    creates_processes_externally, main_address = True, "127.0.0.1"

    def __init__(self, rank: int, port: int) -> None:
        self.rank, self.main_port = rank, port

    def world_size(self) -> int:
        return 2

    def global_rank(self) -> int:
        return self.rank

    local_rank = global_rank

    def node_rank(self) -> int:
        return 0


def forget_the_launcher() -> None:
    """Remove the variables that `processes` has set, which a cluster does not set."""
    for name in EXPORTED:
        os.environ.pop(name, None)


def fitted(**options: Any) -> tuple[str, bool, Any]:
    torch.manual_seed(3)
    trainer = trainer_of("ddp", devices="auto", num_nodes=options.pop("num_nodes", 1), **options)
    trainer.fit(Net(), loader(2))
    return trainer.strategy.environment.name, trainer.is_global_zero, state_of(trainer)


def by_cluster(rank: int, variables: dict[str, str], job: int) -> Any:
    forget_the_launcher()
    os.environ.update({name: value.format(rank=rank, job=job) for name, value in variables.items()})
    return fitted(limit_val_batches=0, num_nodes=int(variables.get("SLURM_NNODES", 1)))


def by_own(rank: int, port: int) -> Any:
    forget_the_launcher()
    return fitted(limit_val_batches=0, plugins=[OwnCluster(rank, port)])


@pytest.fixture(scope="module")
def wanted() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    net = Net()
    plain_loop(net, 14, 1, BATCH)
    return net.state_dict()


@contextmanager
def free_job(variables: dict[str, str]) -> Iterator[int]:
    """Find a job number with a free port, which lightlib derives from the number; hold that port."""
    for job in itertools.count(os.getpid()):
        port = detect(None, variables={name: value.format(rank=0, job=job) for name, value in variables.items()}).port
        with pytest.MonkeyPatch.context() as patch, suppress(LightlibError):
            patch.setattr(place, "_PORTS", [port])
            held = HeldPort()
            break
    with closing(held):
        yield job


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_processes_of_a_cluster_train_as_one(name: str, wanted: dict[str, torch.Tensor]):
    environment, variables = CLUSTERS[name]
    with free_job(variables) as job:
        found = ranks(2, by_cluster, variables, job)
    assert [(kind, first) for kind, first, _ in found] == [(environment, True), (environment, False)]
    for _, _, state in found:
        assert_near(state, wanted)


def test_the_processes_of_a_users_environment_train_as_one(wanted: dict[str, torch.Tensor]):
    with closing(HeldPort()) as held:
        found = ranks(2, by_own, held.port)
    assert [(kind, first) for kind, first, _ in found] == [("OwnCluster", True), ("OwnCluster", False)]
    assert_near(found[1][-1], wanted)
