"""The needs of a trial on this machine: mounted folders, shared memory, the startup hook, its code."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from lightlib import report
from lightlib.errors import MisconfigurationException
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.file.resources import SHM_SIZE
from lightlib.experiment.job import CHECKPOINTS, JOB_FILE
from lightlib.experiment.machine.containers import INSIDE
from lightlib.experiment.messages import DECISIONS, FILE

HOOK = "startup-hook.sh"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  no file is made there
_OURS = (CHECKPOINTS, JOB_FILE, "log.txt", "usage.jsonl", FILE, DECISIONS)  # in the folder of an attempt


def check_machine(config: ExperimentConfig, *, contained: bool = False) -> None:
    """Check the folders and the shared memory that trials get, and warn about keys that only containers follow.

    Args:
        config: The experiment.
        contained: Whether trials run in containers, where folders may have another path.

    Raises:
        ConfigError: A mounted folder does not exist, or would need a container.
    """
    for number, mount in enumerate(config.bind_mounts):
        place = config.places.below(f"bind_mounts.{number}")
        if not Path(mount.host_path).exists():
            place.below("host_path").refuse(
                f"is {mount.host_path!r}, which does not exist on this machine.",
                "a folder that each machine has.",
                "create it, or correct host_path.",
            )
        inside = os.path.normpath(mount.container_path)
        outside = not contained and os.path.isabs(inside) and inside != os.path.normpath(mount.host_path)
        if outside or inside in _OURS:
            place.below("container_path").refuse(
                f"is {mount.container_path!r}, which needs a container: the folder is {mount.host_path!r}.",
                "the same path, or a relative one below the folder of the trial.",
                f"container_path: {mount.host_path}",
            )
        if mount.read_only and not contained and os.access(mount.host_path, os.W_OK):
            report.warn(
                f"{place.below('read_only').text} is true, and nothing keeps trials without a container from writing "
                f"to {mount.host_path!r}. Expected: a container, or a folder that this user cannot write to. "
                "Fix: environment.image, or write permissions of the folder."
            )
    ports = [port.proxy_port for port in config.environment.proxy_ports]
    if ports and INSIDE not in os.environ:
        report.info(
            f"{config.places.below('environment.proxy_ports').text}: no proxy is needed. Trials use the network of "
            f"their machine, also in containers, so {', '.join(map(str, ports))} can be reached there; of two trials "
            "on one machine, only one can listen on a port."
        )
    size = config.resources.shm_size
    if not contained and size != SHM_SIZE and _SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(_SHARED_MEMORY).free
        if free < size:
            report.warn(
                f"{config.places.below('resources.shm_size').text} is {size / 2**30:.3g} GiB, and {free / 2**30:.3g} "
                "GiB of shared memory are free. Workers of loaders may fail."
            )


def mount(config: ExperimentConfig, folder: Path) -> None:
    """Link the mounted folders with relative paths into the folder of an attempt."""
    for bind_mount in config.bind_mounts:
        if not os.path.isabs(bind_mount.container_path):
            link = folder / bind_mount.container_path
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(bind_mount.host_path, target_is_directory=True)


def run_startup_hook(context: Path, variables: Mapping[str, str]) -> None:
    """Run `startup-hook.sh` of the user's code, if there is one; its output is shown.

    Args:
        context: The folder of the code.
        variables: Of the environment, in addition to this process's.

    Raises:
        MisconfigurationException: It failed.
    """
    if not (context / HOOK).is_file():
        return
    code = subprocess.run(  # noqa: S603  the user's own script
        ["sh", HOOK],  # noqa: S607
        cwd=context,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        check=False,
    ).returncode
    if code:
        raise MisconfigurationException(
            f"{HOOK} ended with exit code {code}.",
            expected="0: it prepares the machine before the first trial.",
            fix=f"see its output above; run `sh {HOOK}` in {str(context)!r}.",
        )


def link_code(context: Path, folder: Path) -> None:
    """Link the user's code into the folder of an attempt, in which a command runs and leaves its files."""
    for path in context.iterdir():
        link = folder / path.name
        if path.name not in _OURS and not os.path.lexists(link):
            link.symlink_to(path, target_is_directory=path.is_dir())


def command_of(config: ExperimentConfig, slots: int) -> tuple[str, ...]:
    """Return the command line of a trial with so many slots; empty if it is a fit.

    One that runs once per slot is started by torchrun.
    """
    entry = config.entrypoint
    if entry is None or not entry.command:
        return ()
    words = entry.command
    if not entry.per_slot:
        return words
    python, rest = (words[0], words[1:]) if words[0].startswith("python") else ("python3", words)
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={max(slots, 1)}")
    return (python, *launcher, *rest)
