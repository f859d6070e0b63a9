"""Launch: where the processes of a run come from, and what they tell each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.launch.environment import Environment, detect, free_port
    from lightlib.launch.slurm import SLURMEnvironment
    from lightlib.launch.spawn import ProcessFailedError, launch_function
    from lightlib.launch.subprocess import SubprocessLauncher, launched_processes
    from lightlib.launch.watch import Watch

__all__ = [
    "Environment",
    "ProcessFailedError",
    "SLURMEnvironment",
    "SubprocessLauncher",
    "Watch",
    "detect",
    "free_port",
    "launch_function",
    "launched_processes",
]

_get, _names = lazy.attributes(
    __name__,
    {
        "Environment": "environment",
        "ProcessFailedError": "spawn",
        "SLURMEnvironment": "slurm",
        "SubprocessLauncher": "subprocess",
        "Watch": "watch",
        "detect": "environment",
        "free_port": "environment",
        "launch_function": "spawn",
        "launched_processes": "subprocess",
    },
)

if not TYPE_CHECKING:  # for type checkers there are the names above and no others
    __getattr__, __dir__ = _get, _names
