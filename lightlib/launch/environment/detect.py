"""Detects the rank and world size of this process, from the arguments or a launcher's variables."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from lightlib import registry
from lightlib.errors import ArgumentTypeError, MisconfigurationException, owner, shown
from lightlib.launch.environment import clusters
from lightlib.launch.environment.environment import EXPORTED, Environment
from lightlib.launch.environment.read_variables import Variables, check_arguments, integer, read, required
from lightlib.launch.environment.variables import NAMES, OWN

__all__ = [
    "ENDED",
    "LAUNCHED",
    "PARENT",
    "Environment",
    "detect",
    "launcher_process",
    "local",
    "of_launcher",
    "started",
]

LAUNCHED = "LIGHTLIB_LAUNCHED"
PARENT = "LIGHTLIB_PARENT"
ENDED = "LIGHTLIB_ENDED"  # the file in which a process reports why it is ended
_BY_YOU = "you, once on each machine (NODE_RANK is set)"


def detect(
    devices: int | None,
    num_nodes: int = 1,
    given: Any = None,
    variables: Variables = os.environ,
    *,
    automatic: int = 1,
) -> Environment:
    """Return the environment of this process: the requested one, else the one in a launcher's variables.

    The innermost launcher wins: lightlib's child processes, torchrun, Ray Train, RANK and WORLD_SIZE (Kubeflow or set
    by hand), Open MPI and other MPIs within SLURM, SLURM's srun, LSF's jsrun. A launcher that started a single process
    is ignored, except torchrun, Ray Train and variables set by hand. Without a launcher, NODE_RANK is the number of
    this machine, if the user starts the program once on each machine, or, with LOCAL_RANK, once for each process.

    Args:
        devices: Processes per machine in the Trainer's arguments; None is ``"auto"``: as many as there are.
        num_nodes: Machines in the Trainer's arguments. 1, the default, means as many as there are.
        given: An Environment, the name of one, or an object with the methods of Lightning's ClusterEnvironment.
        variables: Default: those of this process.
        automatic: The meaning of ``"auto"`` if no launcher has started the processes. Default 1.

    Raises:
        MisconfigurationException: The variables are incomplete, contradict each other, or contradict the arguments.
        UnknownNameError: No environment has the given name.
        ArgumentTypeError: `given` is something else.

    Example:
        >>> detect(2, variables={}).describe()
        '2 processes by lightlib'
        >>> torch_run = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
        >>> torch_run |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
        >>> detect(None, variables=torch_run).rank
        1
    """
    ours = of_launcher(variables)
    if ours is not None and not (isinstance(given, Environment) and given.launched):
        return check_arguments(ours, OWN, devices or automatic, num_nodes, variables)
    if LAUNCHED in variables:  # inherited from the process that started this one
        variables = {name: value for name, value in variables.items() if name not in (*EXPORTED, LAUNCHED, PARENT)}
    if given is not None:
        return _requested(given, devices, num_nodes, variables, automatic)
    launched = _from_launcher(variables, devices, num_nodes)
    if launched is not None:
        return launched
    if clusters.is_by_machine(variables):
        return clusters.by_machine(local(variables, devices or automatic, num_nodes), variables)
    clusters.check_pair(variables)
    clusters.warn_without_srun(variables)
    return local(variables, devices or automatic, num_nodes)


def _from_launcher(variables: Variables, devices: int | None = None, num_nodes: int = 1) -> Environment | None:
    for find in (clusters.torchrun, clusters.ray, clusters.plain, clusters.mpi, clusters.slurm, clusters.lsf):
        environment: Environment | None = find(variables, devices, num_nodes)
        if environment is not None:
            return environment
    return None


def started(variables: Variables = os.environ) -> bool:
    """Whether a launcher has started this process, lightlib's own or another."""
    return clusters.is_by_machine(variables) or (of_launcher(variables) or _from_launcher(variables)) is not None


def of_launcher(variables: Variables = os.environ) -> Environment | None:
    """Return the environment that lightlib's own launcher gave to this process, or None."""
    if variables.get(LAUNCHED) != str(os.getpid()) and variables.get(PARENT) != str(os.getppid()):
        return None
    return read(OWN, variables, None, 1)


def launcher_process() -> int:
    """Return the process id of lightlib's launcher if it is, or was until it ended, the parent of this one; else 0."""
    text = os.environ.get(PARENT, "")
    if not text.isdigit():
        return 0
    parent = int(text)
    if os.getppid() == parent:
        return parent
    if os.name != "posix":  # Windows takes signal 0 for Ctrl-C; a process keeps the number of its parent there
        return 0
    try:
        os.kill(parent, 0)
    except OSError as error:
        return parent if isinstance(error, ProcessLookupError) else 0
    return 0  # it lives and is not our parent: a rank has started this program


def local(variables: Variables = os.environ, devices: int | None = None, num_nodes: int = 1) -> Environment:
    """Return the environment of the first process on this machine; lightlib starts the rest.

    With several machines, the program is started once on each, with MASTER_ADDR, MASTER_PORT and NODE_RANK set.
    """
    size = devices or 1
    several = num_nodes > 1 and "NODE_RANK" in variables
    node = integer(variables, "NODE_RANK") if several else 0
    if node >= num_nodes:
        raise MisconfigurationException(
            f"NODE_RANK={node}, but {owner().noun} has num_nodes={num_nodes}.",
            expected="NODE_RANK from 0 to num_nodes - 1.",
            fix=f"{owner()}(num_nodes={node + 1}), or count NODE_RANK from 0.",
        )
    return Environment(
        name="local",
        rank=node * size,
        world_size=size * num_nodes,
        local_size=size,
        node_rank=node,
        num_nodes=num_nodes,
        address=required(variables, "MASTER_ADDR", _BY_YOU, "<host of node 0>") if several else "127.0.0.1",
        port=integer(variables, "MASTER_PORT", _BY_YOU) if several else 0,
    )


def _requested(argument: Any, devices: int | None, num_nodes: int, variables: Variables, automatic: int) -> Environment:
    if argument == "local":
        return local(variables, devices or automatic, num_nodes)
    if isinstance(argument, str):
        find = registry.get("environments", argument)
        if argument not in NAMES:
            return _requested(find(), devices, num_nodes, variables, automatic)
        launched: Environment | None = find(variables, devices, num_nodes)
        if launched is None:
            raise _absent(argument)
        return launched
    environment = (
        argument if isinstance(argument, Environment) else _adapted(argument, devices, num_nodes, variables, automatic)
    )
    names = replace(OWN, title=f"the environment {environment.name!r}", devices_fix="")
    return check_arguments(environment, names, devices, num_nodes, {})


def _absent(name: str) -> MisconfigurationException:
    variables = " or ".join(f"{names.rank} and {names.size}" for names in NAMES[name])
    title = NAMES[name][0].title
    return MisconfigurationException(
        f"The environment {name!r} was requested, but {title} has not started this process as one of several.",
        expected=f"{variables} in the environment.",
        fix=f"start the program with {title}, or leave the environment out: it is detected.",
    )


def _adapted(plugin: Any, devices: int | None, num_nodes: int, variables: Variables, automatic: int) -> Environment:
    """Return the environment given by an object with the methods of Lightning's ClusterEnvironment.

    Its setters receive the number of processes and the rank of this one, as in Lightning.
    """
    methods = ("world_size", "global_rank", "local_rank", "node_rank")
    if isinstance(plugin, type) or not all(callable(getattr(plugin, name, None)) for name in methods):
        raise ArgumentTypeError(
            f"The environment is {shown(plugin)}.",
            expected="a name, a lightlib.launch.Environment, or an object with the methods "
            f"{', '.join(methods)} and the properties main_address, main_port and creates_processes_externally.",
            fix="Environment(name='mine', rank=0, world_size=2, ..., launched=True)",
        )
    launched = bool(getattr(plugin, "creates_processes_externally", True))
    if not launched:
        first = local({**variables, **_rendezvous(plugin)}, devices or automatic, num_nodes)
        getattr(plugin, "set_world_size", _ignore)(first.world_size)
        getattr(plugin, "set_global_rank", _ignore)(first.rank)
    else:  # as Lightning does; one whose launcher knows the numbers ignores these
        size = devices or automatic
        getattr(plugin, "set_world_size", _ignore)(size * num_nodes)
        getattr(plugin, "set_global_rank", _ignore)(int(plugin.node_rank()) * size + int(plugin.local_rank()))
    size, rank, local_rank, node_rank = (int(getattr(plugin, name)()) for name in methods)
    local_size = min(size, devices or max(1, size // num_nodes))
    nodes = -(-size // local_size)
    if launched:
        getattr(plugin, "validate_settings", _ignore)(
            num_devices=devices or local_size, num_nodes=num_nodes if num_nodes > 1 else nodes
        )
    return Environment(
        name=type(plugin).__name__,
        rank=rank,
        world_size=size,
        local_rank=local_rank,
        local_size=local_size,
        node_rank=node_rank,
        num_nodes=nodes,
        address=str(getattr(plugin, "main_address", "127.0.0.1")),
        port=int(getattr(plugin, "main_port", 0)),
        launched=launched,
    )


def _ignore(*values: int, **named: int) -> None:
    """Stand in for a method that the object does not have."""


def _rendezvous(plugin: Any) -> dict[str, str]:
    """Return the variables of torch that an object's properties stand for."""
    properties = {"MASTER_ADDR": "main_address", "MASTER_PORT": "main_port"}
    values = {name: getattr(plugin, attribute, None) for name, attribute in properties.items()}
    return {name: str(value) for name, value in values.items() if value is not None} | {
        "NODE_RANK": str(plugin.node_rank())
    }
