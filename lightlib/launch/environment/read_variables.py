"""Reads rank and world size from a launcher's variables, and checks them against the arguments."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from pathlib import Path

from lightlib import report
from lightlib.errors import MisconfigurationException, owner
from lightlib.launch.environment.environment import Environment
from lightlib.launch.environment.variables import TORCHRUN, Names

Variables = Mapping[str, str]
_DEFAULT_PORT = 29500
_SLURM_TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE")


def read_checked(names: Names, variables: Variables, devices: int | None, num_nodes: int) -> Environment:
    """Return the environment that the variables give, if it agrees with the Trainer's arguments."""
    return check_arguments(read(names, variables, devices, num_nodes), names, devices, num_nodes, variables)


def read(names: Names, variables: Variables, devices: int | None, num_nodes: int) -> Environment:
    """Return the environment that the variables give."""
    rank, size = integer(variables, names.rank, names.title), integer(variables, names.size, names.title)
    if not 0 <= rank < size:
        raise MisconfigurationException(
            f"{names.rank}={rank} and {names.size}={size} were found in the environment.",
            expected=f"{names.rank} from 0 to {names.size} - 1.",
            fix="count ranks from 0, give every process its own, and all of them the same size.",
        )
    local_size = _local_size(names, variables, size, devices, num_nodes)
    local_rank = _first_integer(names.local_rank, variables, names.title)
    local_rank = rank % local_size if local_rank is None else local_rank
    if not 0 <= local_rank < local_size:
        sizes = _shown(names.local_size, variables)
        raise MisconfigurationException(
            f"{_shown(names.local_rank, variables) or f'{names.rank}={rank}'} was found in the environment, but there "
            f"are {local_size} processes on this machine{f' ({sizes})' if sizes else ''}.",
            expected="a local rank from 0 to the number of processes on this machine - 1.",
            fix="set LOCAL_RANK and LOCAL_WORLD_SIZE, or start the program with torchrun.",
        )
    node_rank = _first_integer(names.node_rank, variables, names.title)
    node_rank = rank // local_size if node_rank is None else node_rank
    nodes = _first_integer(names.num_nodes, variables, names.title) or -(-size // local_size)
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


def check_arguments(
    environment: Environment, names: Names, devices: int | None, num_nodes: int, variables: Variables
) -> Environment:
    """Return `environment` if it agrees with the Trainer's arguments."""
    if devices is not None and devices != environment.local_size:
        counts = _shown((*names.local_size, *_SLURM_TASKS, names.size), variables)
        raise MisconfigurationException(
            f"The Trainer has devices={devices}, but {names.title} has started {environment.local_size} "
            f"process{'es' if environment.local_size > 1 else ''} on this machine{f' ({counts})' if counts else ''}.",
            expected="one process for each device.",
            fix=_either(f"{owner()}(devices={environment.local_size})", names.devices_fix.format(devices=devices)),
        )
    if num_nodes > 1 and num_nodes != environment.num_nodes:
        difference = f"The Trainer has num_nodes={num_nodes}, but {names.title} has started processes on"
        if names is TORCHRUN and environment.num_nodes < num_nodes:  # with `--nnodes=1:2` machines may come and go
            report.warn(f"{difference} {environment.num_nodes}.", report.PossibleUserWarning)
            return environment
        raise MisconfigurationException(
            f"{difference} {environment.num_nodes} ({environment.world_size} processes).",
            expected="the same number of machines.",
            fix=_either(f"{owner()}(num_nodes={environment.num_nodes})", names.nodes_fix.format(nodes=num_nodes)),
        )
    return environment


def _either(argument: str, launcher: str) -> str:
    return f"{argument} or {launcher}." if launcher else f"{argument}."


def integer(variables: Variables, name: str, title: str = "the environment") -> int:
    """Return a variable as an int."""
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
    """Return a variable that must be set."""
    if not variables.get(name):
        raise MisconfigurationException(
            f"{name} is not set in the environment, but the processes are started by {title}.",
            expected=f"{name} on every process.",
            fix=f"export {name}={example}",
        )
    return variables[name]


def _first_integer(names: tuple[str, ...], variables: Variables, title: str) -> int | None:
    name = next((name for name in names if variables.get(name)), None)
    return None if name is None else integer(variables, name, title)


def _local_size(names: Names, variables: Variables, size: int, devices: int | None, num_nodes: int) -> int:
    local_size = _tasks_here(variables, size) if names.name == "slurm" else None
    local_size = local_size or _first_integer(names.local_size, variables, names.title)
    if local_size is not None:
        if not 1 <= local_size <= size:
            raise MisconfigurationException(
                f"{_shown(names.local_size, variables)} and {names.size}={size} were found in the environment.",
                expected=f"a number of processes on this machine from 1 to {names.size}.",
                fix="correct them, or start the program with torchrun.",
            )
        return local_size
    per_node, rest = divmod(size, num_nodes)
    if rest or (devices is not None and devices != per_node):
        raise MisconfigurationException(
            f"{names.size}={size} was found in the environment, but {owner().noun} has "
            f"{'' if devices is None else f'devices={devices} and '}num_nodes={num_nodes}.",
            expected=f"{names.size} = devices x num_nodes, or {' or '.join(names.local_size) or 'the tasks per node'} "
            "set for every process.",
            fix=f"{owner()}(devices={max(1, per_node)}), or {names.devices_fix.format(devices=devices or per_node)}.",
        )
    return per_node


def _tasks_here(variables: Variables, size: int) -> int | None:
    """Return how many tasks SLURM runs on this machine, from ``"2(x3),1"`` or ``--ntasks-per-node``."""
    layout = next((variables[name] for name in _SLURM_TASKS if variables.get(name)), None)
    if layout is None or not re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", layout):
        return None
    each = [int(n) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", layout) for n in [count] * int(times or 1)]
    node = integer(variables, "SLURM_NODEID", "SLURM") if variables.get("SLURM_NODEID") else 0
    return min(size, each[node] if node < len(each) else each[0])


def _address(names: Names, variables: Variables, size: int, one_machine: bool) -> str:
    if variables.get("MASTER_ADDR"):
        return variables["MASTER_ADDR"]
    if size == 1 or (one_machine and names.name in {"mpi", "slurm", "lsf"}):
        return "127.0.0.1"
    host = _first_host(variables) if names.name in {"mpi", "slurm", "lsf"} else None
    return host or required(variables, "MASTER_ADDR", names.title, "<host of rank 0>")


def _first_host(variables: Variables) -> str | None:
    """Return the host of rank 0 from SLURM's (``node[03-05,7]``) or LSF's variables."""
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if variables.get(name):
            first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", variables[name])
            return re.sub(r"\[([^-,\]]+)[^\]]*\]", r"\1", first.group()) if first else None
    hosts = variables.get("LSB_HOSTS", "").split() or variables.get("LSB_MCPU_HOSTS", "").split()[::2]
    ranks = Path(variables.get("LSB_DJOB_RANKFILE", ""))
    if variables.get("LSB_DJOB_RANKFILE") and ranks.is_file():
        hosts = ranks.read_text(encoding="utf-8").split()
    computing = [host for host in hosts if host != hosts[0]]  # the first runs only the batch script
    return next(iter(computing or hosts), None)


def _port(names: Names, variables: Variables, size: int) -> int:
    if variables.get("MASTER_PORT"):
        return integer(variables, "MASTER_PORT", names.title)
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
