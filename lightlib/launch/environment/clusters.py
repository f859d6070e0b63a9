"""Where torchrun, SLURM, MPI, LSF, Kubeflow and variables set by hand write which process this is."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lightlib import report
from lightlib.errors import MisconfigurationException
from lightlib.launch.environment.environment import Environment

__all__ = [
    "NAMES",
    "OWN",
    "Names",
    "agreed",
    "by_hand",
    "kubeflow",
    "lsf",
    "mpi",
    "plain",
    "read",
    "refuse_halves",
    "required",
    "slurm",
    "tell_srun",
    "torchrun",
    "whole",
]

Variables = Mapping[str, str]
_DEFAULT_PORT = 29500
_SLURM_TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_SHELLS = ("bash", "sh", "zsh", "interactive")


@dataclass(frozen=True)
class Names:
    """The variables in which a launcher tells a process its place; of several alternatives the first that is set."""

    name: str
    title: str
    rank: str
    size: str
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    node_rank: tuple[str, ...] = ()
    num_nodes: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    devices_fix: str = ""
    nodes_fix: str = ""


_BY_HAND = ("RANK", "WORLD_SIZE", ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",))
OWN = Names(
    "local",
    "lightlib",
    *_BY_HAND,
    ("NODE_RANK",),
    devices_fix="the same `devices` for every Trainer of the program, for the processes are started once",
)
PLAIN = Names(
    "variables",
    "the variables RANK and WORLD_SIZE",
    *_BY_HAND,
    ("NODE_RANK", "GROUP_RANK"),
    devices_fix="unset RANK and WORLD_SIZE (lightlib then starts {devices} processes itself)",
)
_KUBEFLOW = replace(PLAIN, name="kubeflow", title="Kubeflow", devices_fix="as many workers as processes")
_TORCHRUN = Names(
    "torchrun",
    "torchrun",
    *_BY_HAND,
    ("GROUP_RANK",),
    ("GROUP_WORLD_SIZE",),
    devices_fix="torchrun --nproc-per-node={devices}",
    nodes_fix="torchrun --nnodes={nodes}",
)
_SLURM = Names(
    "slurm",
    "SLURM",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    ("SLURM_LOCALID",),
    (),
    ("SLURM_NODEID",),
    ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    job=("SLURM_JOB_ID", "SLURM_JOBID"),
    devices_fix="#SBATCH --ntasks-per-node={devices}",
    nodes_fix="#SBATCH --nodes={nodes}",
)
_OPEN_MPI = Names(
    "mpi",
    "mpirun (Open MPI)",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    devices_fix="mpirun -npernode {devices}",
    nodes_fix="mpirun with hosts on {nodes} machines",
)
_PALS = Names(
    "mpi",
    "mpiexec (PALS)",
    "PALS_RANKID",
    "PMI_SIZE",
    ("PALS_LOCAL_RANKID",),
    ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
    ("PALS_NODEID",),
    job=("PALS_APID",),
    devices_fix="mpiexec --ppn {devices}",
)
_PMI = Names(
    "mpi",
    "mpiexec (MPICH, Intel MPI)",
    "PMI_RANK",
    "PMI_SIZE",
    ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
    ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    job=("PMI_JOBID",),
    devices_fix="mpiexec -ppn {devices}",
)
_MVAPICH = Names(
    "mpi",
    "mpirun (MVAPICH)",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    ("MV2_COMM_WORLD_LOCAL_RANK",),
    ("MV2_COMM_WORLD_LOCAL_SIZE",),
    devices_fix="mpirun -ppn {devices}",
)
_LSF = Names(
    "lsf",
    "LSF (jsrun)",
    "JSM_NAMESPACE_RANK",
    "JSM_NAMESPACE_SIZE",
    ("JSM_NAMESPACE_LOCAL_RANK",),
    ("JSM_NAMESPACE_LOCAL_SIZE",),
    job=("LSB_JOBID",),
    devices_fix="jsrun with {devices} tasks per host",
    nodes_fix="jsrun on {nodes} hosts",
)
_MPI = (_OPEN_MPI, _PALS, _PMI, _MVAPICH)
NAMES: dict[str, tuple[Names, ...]] = {
    "torchrun": (_TORCHRUN,),
    "slurm": (_SLURM,),
    "mpi": _MPI,
    "kubeflow": (_KUBEFLOW,),
    "lsf": (_LSF,),
    "variables": (PLAIN,),
}


def torchrun(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the place that torchrun gave to this process, or None."""
    if "TORCHELASTIC_RUN_ID" not in variables:
        return None
    return found(_TORCHRUN, variables, devices, num_nodes)


def plain(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the place that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT give to this process, or None."""
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return None
    in_a_pod = "KUBERNETES_SERVICE_HOST" in variables and "LOCAL_RANK" not in variables
    return (kubeflow if in_a_pod else by_hand)(variables, devices, num_nodes)


def by_hand(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the place that RANK and WORLD_SIZE give to this process, in a pod of Kubernetes or not."""
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return None
    return found(PLAIN, variables, devices, num_nodes)


def kubeflow(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the place of this pod, with one process in each; None without RANK and WORLD_SIZE."""
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return None
    return found(_KUBEFLOW, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **variables}, devices, num_nodes)


def slurm(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the place that srun gave to this process; None without srun, in a shell, or with one task."""
    step = variables.get("SLURM_STEP_NUM_TASKS")
    tasks = step or variables.get("SLURM_NTASKS")
    shell = variables.get("SLURM_JOB_NAME") in _SHELLS or "SLURM_PTY_PORT" in variables
    by_srun = "SLURM_PROCID" in variables and not {"SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"}.isdisjoint(
        variables
    )
    if tasks in {None, "1"} or not by_srun or (shell and step is None):
        return None
    names = replace(_SLURM, size="SLURM_STEP_NUM_TASKS") if step else _SLURM
    return found(names, variables, devices, num_nodes)


def mpi(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the place that an mpirun gave to this process: Open MPI, PALS, MPICH, Intel, MVAPICH; None else.

    An mpirun within SLURM starts its helpers by srun, so that SLURM's numbers are theirs; yet what `srun --mpi=pmi2`
    sets (PMI_RANK alone) is left to SLURM.
    """
    for names in _MPI:
        if variables.get(names.size, "1") == "1" or names.rank not in variables:
            continue
        if names is _PMI and "SLURM_PROCID" in variables and "MPI_LOCALRANKID" not in variables:
            continue
        return found(names, variables, devices, num_nodes)
    return None


def lsf(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    """Return the place that LSF's jsrun gave to this process, or None."""
    if variables.get(_LSF.size, "1") == "1" or _LSF.rank not in variables:
        return None
    return found(_LSF, variables, devices, num_nodes)


# reading
def found(names: Names, variables: Variables, devices: int | None, num_nodes: int) -> Environment:
    """Return the place that these variables tell, when it agrees with the Trainer's arguments."""
    return agreed(read(names, variables, devices, num_nodes), names, devices, num_nodes, variables)


def read(names: Names, variables: Variables, devices: int | None, num_nodes: int) -> Environment:
    """Return the place that these variables tell.

    Raises:
        MisconfigurationException: One is missing, is not a whole number, or contradicts another.
    """
    rank, size = whole(variables, names.rank, names.title), whole(variables, names.size, names.title)
    if not 0 <= rank < size:
        raise MisconfigurationException(
            f"{names.rank}={rank} and {names.size}={size} were found in the environment.",
            expected=f"{names.rank} from 0 to {names.size} - 1.",
            fix="count ranks from 0, give every process its own, and all of them the same size.",
        )
    local_size = _local_size(names, variables, size, devices, num_nodes)
    local_rank = _first_whole(names.local_rank, variables, names.title)
    local_rank = rank % local_size if local_rank is None else local_rank
    if not 0 <= local_rank < local_size:
        raise MisconfigurationException(
            f"{_shown(names.local_rank, variables) or f'{names.rank}={rank}'} was found in the environment, but there "
            f"are {local_size} processes on this machine{_because(names.local_size, variables)}.",
            expected="a local rank from 0 to the number of processes on this machine - 1.",
            fix="set LOCAL_RANK and LOCAL_WORLD_SIZE, or start the program with torchrun.",
        )
    node_rank = _first_whole(names.node_rank, variables, names.title)
    node_rank = rank // local_size if node_rank is None else node_rank
    nodes = _first_whole(names.num_nodes, variables, names.title) or -(-size // local_size)
    one_machine = local_size == size
    return Environment(
        name=names.name,
        rank=rank,
        world_size=size,
        local_rank=local_rank,
        local_size=local_size,
        node_rank=node_rank,
        num_nodes=max(nodes, node_rank + 1),
        address=_address(names, variables, size, one_machine),
        port=_port(names, variables, size),
        launched=True,
    )


def agreed(place: Environment, names: Names, devices: int | None, num_nodes: int, variables: Variables) -> Environment:
    """Return `place`, when it is what the Trainer's arguments ask for.

    Raises:
        MisconfigurationException: Another number of processes or machines was started.
    """
    if devices is not None and devices != place.local_size:
        told = _shown((*names.local_size, *_SLURM_TASKS, names.size), variables)
        raise MisconfigurationException(
            f"The Trainer asks for devices={devices}, but {names.title} has started {place.local_size} "
            f"process{'es' if place.local_size > 1 else ''} on this machine{f' ({told})' if told else ''}.",
            expected="one process for each device.",
            fix=" or ".join(
                [f"Trainer(devices={place.local_size})"]
                + ([names.devices_fix.format(devices=devices)] if names.devices_fix else [])
            )
            + ".",
        )
    if num_nodes > 1 and num_nodes != place.num_nodes:
        what = f"The Trainer asks for num_nodes={num_nodes}, but {names.title} has started processes on"
        if names is _TORCHRUN and place.num_nodes < num_nodes:  # with `--nnodes=1:2` machines may come and go
            report.warn(f"{what} {place.num_nodes}.", report.PossibleUserWarning)
            return place
        raise MisconfigurationException(
            f"{what} {place.num_nodes} ({place.world_size} processes).",
            expected="the same number of machines.",
            fix=" or ".join(
                [f"Trainer(num_nodes={place.num_nodes})"]
                + ([names.nodes_fix.format(nodes=num_nodes)] if names.nodes_fix else [])
            )
            + ".",
        )
    return place


def refuse_halves(variables: Variables) -> None:
    """Refuse one of RANK and WORLD_SIZE without the other, where no launcher is seen.

    Raises:
        MisconfigurationException: One is set and the other is not.
    """
    for there, missing in (("WORLD_SIZE", "RANK"), ("RANK", "WORLD_SIZE")):
        if there in variables and missing not in variables:
            raise MisconfigurationException(
                f"{there}={variables[there]} is set in the environment, but {missing} is not, and no launcher is seen.",
                expected="RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together, or none of them.",
                fix=f"set the others, start the program with torchrun, or unset {there}.",
            )


def tell_srun(variables: Variables) -> None:
    """Warn when SLURM has granted several tasks and the program was started without srun, as one process."""
    tasks, name = variables.get("SLURM_NTASKS", "1"), variables.get("SLURM_JOB_NAME")
    if tasks != "1" and name not in _SHELLS and "SLURM_STEP_ID" not in variables and "SLURM_PTY_PORT" not in variables:
        report.warn(
            f"SLURM has granted {tasks} tasks (SLURM_NTASKS={tasks}), but this program was started without srun, as "
            "one process. To use them all write `srun python ...` in the batch script.",
            report.PossibleUserWarning,
        )


def whole(variables: Variables, name: str, title: str = "the environment") -> int:
    """Return a variable as an int.

    Raises:
        MisconfigurationException: It is missing or something else.
    """
    value = required(variables, name, title, "0")
    try:
        return int(value)
    except ValueError:
        raise MisconfigurationException(
            f"{name}={value!r} was found in the environment.",
            expected="a whole number.",
            fix=f"correct it, or unset {name} and start the program with torchrun.",
        ) from None


def required(variables: Variables, name: str, title: str, example: str) -> str:
    """Return a variable that must be there.

    Raises:
        MisconfigurationException: It is not.
    """
    if not variables.get(name):
        raise MisconfigurationException(
            f"{name} is not set in the environment, but the processes are started by {title}.",
            expected=f"{name} on every process.",
            fix=f"export {name}={example}",
        )
    return variables[name]


def _first_whole(names: tuple[str, ...], variables: Variables, title: str) -> int | None:
    name = next((name for name in names if variables.get(name)), None)
    return None if name is None else whole(variables, name, title)


def _local_size(names: Names, variables: Variables, size: int, devices: int | None, num_nodes: int) -> int:
    told = _tasks_here(variables, size) if names.name == "slurm" else None
    told = told or _first_whole(names.local_size, variables, names.title)
    if told is not None:
        if not 1 <= told <= size:
            raise MisconfigurationException(
                f"{_shown(names.local_size, variables)} and {names.size}={size} were found in the environment.",
                expected="from 1 to all of the processes on this machine.",
                fix="correct them, or start the program with torchrun.",
            )
        return told
    per_node, rest = divmod(size, num_nodes)
    if rest or (devices is not None and devices != per_node):
        raise MisconfigurationException(
            f"{names.size}={size} was found in the environment, but the Trainer has "
            f"{'' if devices is None else f'devices={devices} and '}num_nodes={num_nodes}.",
            expected=f"{names.size} = devices x num_nodes, or {' or '.join(names.local_size) or 'the tasks per node'} "
            "set for every process.",
            fix=f"Trainer(devices={max(1, per_node)}), or {names.devices_fix.format(devices=devices or per_node)}.",
        )
    return per_node


def _tasks_here(variables: Variables, size: int) -> int | None:
    """Return how many tasks SLURM runs on this machine, from ``"2(x3),1"`` or ``--ntasks-per-node``."""
    layout = next((variables[name] for name in _SLURM_TASKS if variables.get(name)), None)
    if layout is None or not re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", layout):
        return None
    each = [int(n) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", layout) for n in [count] * int(times or 1)]
    node = whole(variables, "SLURM_NODEID", "SLURM") if variables.get("SLURM_NODEID") else 0
    return min(size, each[node] if node < len(each) else each[0])


def _address(names: Names, variables: Variables, size: int, one_machine: bool) -> str:
    if variables.get("MASTER_ADDR"):
        return variables["MASTER_ADDR"]
    if size == 1 or (one_machine and names.name in {"mpi", "slurm", "lsf"}):
        return "127.0.0.1"
    host = _first_host(variables) if names.name in {"mpi", "slurm", "lsf"} else None
    return host or required(variables, "MASTER_ADDR", names.title, "<host of rank 0>")


def _first_host(variables: Variables) -> str | None:
    """Return the host of rank 0, as SLURM (``node[03-05,7]``) or LSF tells it."""
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if variables.get(name):
            first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", variables[name])
            return re.sub(r"\[([^-,\]]+)[^\]]*\]", r"\1", first.group()) if first else None
    hosts = variables.get("LSB_HOSTS", "").split() or variables.get("LSB_MCPU_HOSTS", "").split()[::2]
    ranks = Path(variables.get("LSB_DJOB_RANKFILE", ""))
    if variables.get("LSB_DJOB_RANKFILE") and ranks.is_file():
        hosts = ranks.read_text(encoding="utf-8").split()
    computing = [host for host in hosts if host != hosts[0]]  # the first runs the batch script, and no process
    return next(iter(computing or hosts), None)


def _port(names: Names, variables: Variables, size: int) -> int:
    if variables.get("MASTER_PORT"):
        return whole(variables, "MASTER_PORT", names.title)
    if size > 1 and names.name not in {"mpi", "slurm", "lsf"}:
        required(variables, "MASTER_PORT", names.title, str(_DEFAULT_PORT))
    job = next((variables[name] for name in names.job if variables.get(name)), None)
    if job is None:
        return _DEFAULT_PORT if size > 1 else 0
    step = variables.get("SLURM_STEP_ID", "0") if names.name == "slurm" else "0"
    number = int(job) + 1000 * int(step) if (job + step).isdigit() else zlib.crc32(job.encode())
    return 20000 + number % 10000


def _shown(names: tuple[str, ...], variables: Variables) -> str:
    return ", ".join(f"{name}={variables[name]}" for name in names if name in variables)


def _because(names: tuple[str, ...], variables: Variables) -> str:
    told = _shown(names, variables)
    return f" ({told})" if told else ""
