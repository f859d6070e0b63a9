"""ContainerLauncher: composes and runs `docker run`, so that processes in containers find each other."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lightlib.errors import (
    ArgumentTypeError,
    MisconfigurationException,
    check_int,
    check_number,
    check_word,
    wrong_type,
)

_ENGINES = ("docker", "podman")


class ContainerLauncher:
    """Runs a program in a container on each machine; the containers form one run.

    Each machine runs one container, and the program in it starts a process per device, as without containers:
    ``Trainer(devices=8, num_nodes=2)``. The containers use the network of their machines, and get the variables
    ``NODE_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` by which the processes find each other.

    Args:
        image: The image, with Python, torch and lightlib in it.
        num_nodes: The number of machines. Default 1.
        address: The first machine's address, which all machines reach; needed with several.
        port: A free port of the first machine. Default 29500.
        mounts: Folders of the machine, each with the folder in the container where it appears. Default: the working
            folder, at the same place, where the program then runs.
        env: Further variables: values, or None to pass on the machine's value.
        gpus: ``"all"``, or ``"device=0,1"``; None (default): none.
        shm_size: Size of shared memory, which the workers of loaders use. Default: the machine's (``--ipc=host``).
        options: Further options, in front of the image.
        engine: ``"docker"`` (default) or ``"podman"``, which takes the same options.

    Raises:
        ArgumentTypeError: An argument has another type.
        MisconfigurationException: Several machines without an address, or a number out of range.

    Example:
        >>> launcher = ContainerLauncher("train:1", mounts={"/data": "/data"}, gpus="all", shm_size="8g")
        >>> " ".join(launcher.command(["python", "train.py"]))
        'docker run --rm --network=host --shm-size=8g --gpus=all --mount=type=bind,source=/data,target=/data train:1 \
python train.py'
    """

    def __init__(
        self,
        image: str,
        *,
        num_nodes: int = 1,
        address: str | None = None,
        port: int = 29500,
        mounts: Mapping[str, str] | None = None,
        env: Mapping[str, str | None] | None = None,
        gpus: str | None = None,
        shm_size: str | None = None,
        options: Sequence[str] = (),
        engine: Literal["docker", "podman"] = "docker",
    ) -> None:
        super().__init__()
        _check_text(image=image)
        _check_text(**{name: text for name, text in {"address": address, "gpus": gpus}.items() if text is not None})
        for name, number, most in (("num_nodes", num_nodes, 2**20), ("port", port, 65535)):
            check_int("ContainerLauncher", name, number, 1)
            check_number("ContainerLauncher", name, number, least=1, most=most)
        check_word("ContainerLauncher", "engine", engine, _ENGINES)
        if isinstance(options, str):
            raise wrong_type("ContainerLauncher", "options", options, "a list", f"{shlex.split(options)!r}")
        if num_nodes > 1 and address is None:
            raise MisconfigurationException(
                f"ContainerLauncher(num_nodes={num_nodes}) without an address.",
                expected="the address of the first machine, at which the other machines find it.",
                fix="ContainerLauncher(…, address='node01')",
            )
        self.image, self.num_nodes, self.address, self.port = image, num_nodes, address, port
        self.mounts, self.env = None if mounts is None else dict(mounts), dict(env or {})
        self.gpus, self.shm_size, self.options, self.engine = gpus, shm_size, tuple(options), engine

    def command(self, program: Sequence[str], node_rank: int = 0) -> list[str]:
        """Return the command line for the machine number `node_rank`.

        Args:
            program: The program and its arguments, in the container: ``["python", "train.py"]``.
            node_rank: The number of the machine, from 0. Default 0.

        Raises:
            ArgumentTypeError: `program` is no list.
            MisconfigurationException: There is no such machine.
        """
        if isinstance(program, str) or not program:
            raise ArgumentTypeError(
                f"command({program!r}).", expected="a program with its arguments.", fix='["python", "train.py"]'
            )
        check_int("command", "node_rank", node_rank, 0)
        check_number("command", "node_rank", node_rank, least=0, most=self.num_nodes - 1, example=0)
        return [
            self.engine, "run", "--rm", "--network=host",
            "--ipc=host" if self.shm_size is None else f"--shm-size={self.shm_size}",
            *([f"--gpus={self.gpus}"] if self.gpus is not None else []),
            *(f"--env={name}" if value is None else f"--env={name}={value}" for name, value in self._env(node_rank)),
            *self._folders(), *self.options, self.image, *program,
        ]  # fmt: skip

    def run(self, program: Sequence[str], node_rank: int | None = None) -> int:
        """Run the container of this machine, and return its exit code.

        Args:
            program: As for `command`.
            node_rank: The number of this machine. Default: the variable ``NODE_RANK``, else 0.

        Raises:
            MisconfigurationException: The engine is not installed, or a mounted folder does not exist.
        """
        if node_rank is None:
            node_rank = int(os.environ.get("NODE_RANK", "0"))
        command = self.command(program, node_rank)
        if shutil.which(self.engine) is None:
            raise MisconfigurationException(
                f"ContainerLauncher needs {self.engine}, which is not on the PATH.",
                expected=f"{' or '.join(_ENGINES)}.",
                fix=f"install it, or run this where it is: {shlex.join(command)}",
            )
        absent = [folder for folder in self.mounts or {} if not Path(folder).exists()]
        if absent:
            raise MisconfigurationException(
                f"ContainerLauncher(mounts={{{absent[0]!r}: …}}): there is no such folder on this machine.",
                expected="folders of this machine, by which the container's are backed.",
                fix=f"create {absent[0]}, or leave it out",
            )
        return subprocess.run(command, check=False).returncode  # noqa: S603  the user's program

    def _env(self, node_rank: int) -> list[tuple[str, str | None]]:
        address = {} if self.address is None else {"MASTER_ADDR": self.address, "MASTER_PORT": str(self.port)}
        several = {"NODE_RANK": str(node_rank)} if self.num_nodes > 1 else {}
        return [*{**address, **several, **self.env}.items()]

    def _folders(self) -> list[str]:
        if self.mounts is None:
            here = os.getcwd()
            return [f"--mount=type=bind,source={here},target={here}", f"--workdir={here}"]
        return [f"--mount=type=bind,source={source},target={target}" for source, target in self.mounts.items()]


def _check_text(**options: Any) -> None:
    for name, value in options.items():
        if not isinstance(value, str) or not value:
            raise wrong_type("ContainerLauncher", name, value, "a text", "'…'")
