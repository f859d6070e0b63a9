"""One function per launcher (torchrun, Ray, SLURM, MPI, LSF, Kubeflow): its Environment, or None."""

from __future__ import annotations

import os
from dataclasses import replace

from lightlib import report
from lightlib.errors import MisconfigurationException, owner
from lightlib.launch.environment.environment import Environment
from lightlib.launch.environment.read_variables import Variables, integer, read_checked
from lightlib.launch.environment.variables import KUBEFLOW, LSF, MPI, PLAIN, PMI, RAY, SLURM, TORCHRUN

_SHELLS = ("bash", "sh", "zsh", "interactive")


def torchrun(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the environment that torchrun gave to this process, or None."""
    if "TORCHELASTIC_RUN_ID" not in variables:
        return None
    return read_checked(TORCHRUN, variables, devices, num_nodes)


def ray(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the environment that Ray Train gave to this worker, or None.

    The workers have met before; Ray leaves no address if its TorchConfig has ``init_method="tcp"``.
    """
    if not {"RAY_JOB_ID", "RANK", "WORLD_SIZE"}.issubset(variables):
        return None
    met = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return read_checked(RAY, variables if "MASTER_PORT" in variables else {**variables, **met}, devices, num_nodes)


def plain(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the environment given by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or None."""
    in_a_pod = "KUBERNETES_SERVICE_HOST" in variables and "LOCAL_RANK" not in variables
    return (kubeflow if in_a_pod else by_hand)(variables, devices, num_nodes)


def by_hand(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the environment given by RANK and WORLD_SIZE, in a pod of Kubernetes or not."""
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return None
    return read_checked(PLAIN, variables, devices, num_nodes)


def kubeflow(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the environment of this pod, with one process in each; None without RANK and WORLD_SIZE."""
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return None
    return read_checked(KUBEFLOW, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **variables}, devices, num_nodes)


def slurm(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the environment that srun gave to this process; None without srun, in a shell, or with one task."""
    step = variables.get("SLURM_STEP_NUM_TASKS")
    tasks = step or variables.get("SLURM_NTASKS")
    shell = variables.get("SLURM_JOB_NAME") in _SHELLS or "SLURM_PTY_PORT" in variables
    steps = {"SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"}
    by_srun = "SLURM_PROCID" in variables and not steps.isdisjoint(variables)
    if tasks in {None, "1"} or not by_srun or (shell and step is None):
        return None
    names = replace(SLURM, size="SLURM_STEP_NUM_TASKS") if step else SLURM
    return read_checked(names, variables, devices, num_nodes)


def mpi(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the environment that an mpirun (Open MPI, PALS, MPICH, Intel, MVAPICH) gave to this process, or None.

    An mpirun within SLURM starts its helpers with srun, so SLURM's numbers are theirs; but PMI_RANK alone, as
    `srun --mpi=pmi2` sets it, is left to SLURM.
    """
    for names in MPI:
        if variables.get(names.size, "1") == "1" or names.rank not in variables:
            continue
        if names is PMI and "SLURM_PROCID" in variables and "MPI_LOCALRANKID" not in variables:
            continue
        return read_checked(names, variables, devices, num_nodes)
    return None


def lsf(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the environment that LSF's jsrun gave to this process, or None."""
    if variables.get(LSF.size, "1") == "1" or LSF.rank not in variables:
        return None
    return read_checked(LSF, variables, devices, num_nodes)


def is_by_machine(variables: Variables) -> bool:
    """Whether the user starts the program on each machine, or each process, with the number of it and no RANK."""
    by_number = not {"NODE_RANK", "LOCAL_RANK"}.isdisjoint(variables)
    return by_number and "RANK" not in variables and {"MASTER_ADDR", "MASTER_PORT"}.issubset(variables)


def by_machine(first: Environment, variables: Variables) -> Environment:
    """Return the environment of this process, given that of the first one of its machine.

    With LOCAL_RANK the processes exist already; otherwise lightlib starts the other ones of this machine.

    Raises:
        MisconfigurationException: WORLD_SIZE is set and another number, or there is no such LOCAL_RANK.
    """
    size, nodes = first.local_size, first.num_nodes
    if "WORLD_SIZE" in variables and integer(variables, "WORLD_SIZE") != first.world_size:
        world_size = integer(variables, "WORLD_SIZE")
        right = (
            f"{owner()}(num_nodes={world_size // size})"
            if world_size > size and world_size % size == 0
            else "correct WORLD_SIZE"
        )
        raise MisconfigurationException(
            f"WORLD_SIZE={world_size} is set in the environment, but {owner().noun} has devices={size} and "
            f"num_nodes={nodes}: {first.world_size} process{'es' if first.world_size > 1 else ''}.",
            expected="WORLD_SIZE = devices x num_nodes, or no WORLD_SIZE: NODE_RANK, devices and num_nodes are enough.",
            fix=f"{right}, or unset WORLD_SIZE.",
        )
    if "LOCAL_RANK" not in variables or first.world_size == 1:
        return first
    local_rank = integer(variables, "LOCAL_RANK")
    if not 0 <= local_rank < size:
        raise MisconfigurationException(
            f"LOCAL_RANK={local_rank} is set in the environment, but {owner().noun} has devices={size}.",
            expected="LOCAL_RANK from 0 to devices - 1, or no LOCAL_RANK: lightlib then starts the processes.",
            fix=f"{owner()}(devices={local_rank + 1}), or unset LOCAL_RANK.",
        )
    port = integer(variables, "MASTER_PORT")
    return replace(first.at(local_rank, port), name="NODE_RANK and LOCAL_RANK", address=variables["MASTER_ADDR"])


def check_pair(variables: Variables) -> None:
    """Refuse one of RANK and WORLD_SIZE without the other if there is no launcher."""
    for present, missing in (("WORLD_SIZE", "RANK"), ("RANK", "WORLD_SIZE")):
        if present in variables and missing not in variables:
            raise MisconfigurationException(
                f"{present}={variables[present]} is set in the environment, but {missing} is not, and no launcher was "
                "detected.",
                expected="RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together, or none of them.",
                fix=f"set all four, or NODE_RANK, MASTER_ADDR and MASTER_PORT if you start the program once on each "
                f"machine, start it with torchrun, or unset {present}.",
            )


def warn_without_srun(variables: Variables) -> None:
    """Warn if SLURM has granted several tasks but the program was started without srun, as one process."""
    tasks, name = variables.get("SLURM_NTASKS", "1"), variables.get("SLURM_JOB_NAME")
    if tasks != "1" and name not in _SHELLS and "SLURM_STEP_ID" not in variables and "SLURM_PTY_PORT" not in variables:
        report.warn(
            f"SLURM has granted {tasks} tasks (SLURM_NTASKS={tasks}), but this program was started without srun, as "
            "one process. To use all tasks, write `srun python ...` in the batch script.",
            report.PossibleUserWarning,
        )
