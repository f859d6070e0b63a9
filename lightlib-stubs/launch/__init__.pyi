# Written by scripts/typing_stubs.py --write.
from lightlib.launch.container import ContainerLauncher
from lightlib.launch.environment.detect import detect
from lightlib.launch.environment.environment import Environment, free_port
from lightlib.launch.environment.slurm import SLURMEnvironment
from lightlib.launch.start.process_errors import ProcessFailedError
from lightlib.launch.start.spawn import launch_function
from lightlib.launch.start.subprocess import SubprocessLauncher, launched_processes
from lightlib.launch.watch.watch import Watch
__all__ = ['ContainerLauncher', 'Environment', 'ProcessFailedError', 'SLURMEnvironment', 'SubprocessLauncher', 'Watch', 'detect', 'free_port', 'launch_function', 'launched_processes']
