"""Launch: start or detect the processes of a run, and propagate failures and stops between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.launch.container import ContainerLauncher
    from lightlib.launch.environment.detect import detect
    from lightlib.launch.environment.environment import Environment, free_port
    from lightlib.launch.environment.slurm import SLURMEnvironment
    from lightlib.launch.start.process_errors import ProcessFailedError
    from lightlib.launch.start.spawn import launch_function
    from lightlib.launch.start.subprocess import SubprocessLauncher, launched_processes
    from lightlib.launch.watch.watch import Watch

__all__ = [
    "ContainerLauncher",
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
        "ContainerLauncher": "container",
        "Environment": "environment.environment",
        "ProcessFailedError": "start.process_errors",
        "SLURMEnvironment": "environment.slurm",
        "SubprocessLauncher": "start.subprocess",
        "Watch": "watch.watch",
        "detect": "environment.detect",
        "free_port": "environment.environment",
        "launch_function": "start.spawn",
        "launched_processes": "start.subprocess",
    },
)

if not TYPE_CHECKING:  # type checkers see only the names above
    __getattr__, __dir__ = _get, _names
