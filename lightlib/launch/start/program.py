"""The running program: whether it is interactive, and the command that runs it again."""

from __future__ import annotations

import multiprocessing
import os
import re
import shlex
import sys
from types import ModuleType

from lightlib.errors import MisconfigurationException, owner
from lightlib.launch.environment.environment import Environment
from lightlib.launch.start import hydra
from lightlib.launch.start.child import FOLLOW_PARENT


def is_shell() -> bool:
    """Return whether this is a notebook or a Python shell, in which more code may follow the current one."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return (get_ipython is not None and get_ipython() is not None) or hasattr(sys, "ps1")


def is_interactive() -> bool:
    """Return whether this is a notebook, a Python shell, or a program that becomes one when it ends."""
    return is_shell() or bool(sys.flags.interactive)


def command_of_program(size: int, forked: str) -> list[str]:
    """Return the command that runs this program again.

    An error names the `size`, and how the strategy with forked processes is written, which may be empty.
    """
    arguments, main = sys.orig_argv[1:], sys.modules["__main__"]
    if multiprocessing.parent_process() is not None:
        reason = "this process was started by multiprocessing"
    elif "pytest" in sys.modules and "PYTEST_CURRENT_TEST" in os.environ:
        reason = "this is a test, and pytest would run all tests again"
    elif is_interactive():
        reason = "this is a notebook or an interactive session, which cannot be run again"
    elif not (sys.executable and (_file(main) or any(re.match("-[a-zA-Z]*c", option) for option in arguments))):
        reason = "there is no script to run again"
    else:
        follow = [sys.executable, "-I", "-S", "-c", FOLLOW_PARENT] if sys.platform == "linux" else [sys.executable]
        return [*follow, *hydra.with_folder(arguments)]
    raise MisconfigurationException(
        f"devices={size} needs {size} processes, for which the program would be run again; but {reason}.",
        expected="a script, started as `python train.py`.",
        fix=f"{_in_one_program(forked)}a script started with `torchrun --nproc-per-node={size} train.py`.",
    )


def check_one_machine(environment: Environment) -> None:
    """Refuse several machines without a launcher or a given port: the number of this one is unknown."""
    if environment.num_nodes == 1 or environment.port:
        return
    main, nodes, size = sys.modules["__main__"], environment.num_nodes, environment.local_size
    module = main.__spec__.name.removesuffix(".__main__") if main.__spec__ is not None else None
    program = ["-m", module] if module else [sys.argv[0] if _file(main) else "train.py"]
    raise MisconfigurationException(
        f"num_nodes={nodes}, but it is unknown which of the {nodes} machines this is: neither torchrun nor SLURM, MPI, "
        "LSF or Kubeflow has started this process.",
        expected="a launcher that starts the program on every machine.",
        fix=f"run on each machine\n  torchrun --nnodes={nodes} --nproc-per-node={size} --rdzv-backend=c10d "
        f"--rdzv-endpoint=FIRST_HOST:29400 --rdzv-id=1 {shlex.join([*program, *sys.argv[1:]])}",
    )


def _in_one_program(forked: str) -> str:
    if not forked:
        return ""
    spawned = forked.replace("notebook", "spawn").replace("fork", "spawn")
    return f"{owner()}(strategy={forked}) in a notebook, {owner()}(strategy={spawned}) in a program, or "


def _file(main: ModuleType) -> str | None:
    """Return the file of the program; None if it was typed, piped or given by `-c`."""
    file: str | None = getattr(main, "__file__", None)
    return None if file == "<stdin>" else file
