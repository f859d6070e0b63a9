"""Containers: the command lines by which trials run in the image of their experiment."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightlib.checkpoint.storage.store import is_remote, local_path
from lightlib.errors import LightlibError
from lightlib.experiment.current import JOB
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.machine.account import Account
from lightlib.experiment.machine.slots import Slot
from lightlib.launch.container import ContainerLauncher
from lightlib.report import MASK

INSIDE = "LIGHTLIB_INSIDE_IMAGE"  # a variable of a worker that runs in the image already, as in a pod
ENGINES = ("docker", "podman")
_MORE = ("PYTHONPATH", "PYTHONUNBUFFERED", JOB)  # variables of every trial
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
# Runs the command behind it. The standard input of the container is the worker's: when the worker or the client is
# gone it ends, and the command is killed. Signals reach the command, and `wait` returns early for each of them.
_SHELL = """
if [ -f "$0/startup-hook.sh" ]; then (cd "$0" && sh startup-hook.sh) || exit; fi
exec 3<&0
"$@" </dev/null 3<&- & command=$!
(cat <&3 >/dev/null; kill -KILL $command 2>/dev/null) >/dev/null 2>&1 & watch=$!
for name in TERM INT USR1; do trap "kill -$name $command 2>/dev/null" $name; done
while true; do
  wait $command; code=$?
  kill -0 $command 2>/dev/null || break
done
kill -KILL $watch 2>/dev/null
exit $code
"""


@dataclass(frozen=True)
class Containers:
    """Containers of one experiment on this machine.

    Args:
        config: The experiment.
        folder: Of the experiment: mounted at its own path, with code, checkpoints and messages.
        kind: The kind of the slots: ``"cpu"`` or ``"cuda"``.
        engine: ``"docker"`` or ``"podman"``.
        account: Of the registry. Default: none.
    """

    config: ExperimentConfig
    folder: Path
    kind: str
    engine: str
    account: Account | None = None

    @classmethod
    def of(cls, config: ExperimentConfig, folder: Path, kind: str) -> Containers | None:
        """Return those of an experiment; None if it has no image, or if this process runs in it already.

        Raises:
            MisconfigurationException: There is no image for these slots, or no engine on this machine; or the account
                is malformed, or has only a token that the engine does not take.
        """
        images, place = config.environment.image, config.places.below("environment.image")
        if not images or INSIDE in os.environ:
            return None
        if kind not in images:
            place.refuse(
                f"has an image for {', '.join(images)}, and this machine has {kind} slots.",
                f"an image for {kind}.",
                f"environment.image: {{{kind}: IMAGE}}",
            )
        engine = next((program for program in ENGINES if shutil.which(program)), None)
        if engine is None:
            place.refuse(
                f"is {images[kind]!r}, and this machine has neither {' nor '.join(ENGINES)}.",
                "a program that runs containers.",
                "install podman; or delete environment.image, and trials run with this Python.",
            )
        below = config.places.below("environment.registry_auth")
        return cls(
            config, folder, kind, engine, Account.of(config.environment.registry_auth, images[kind], engine, below)
        )

    def prepare(self) -> None:
        """Log in to the registry, and pull the image if the experiment asks for it; with a token, if it is missing too.

        Raises:
            LightlibError: The registry refuses that.
        """
        image, account = self.config.environment.image[self.kind], self.account
        if account is not None and account.login is not None:
            name, password = account.login
            self._call(["login", "--username", name, "--password-stdin", account.server], given=password)
        if account is not None and account.tokens:
            if self.config.environment.force_pull_image or not self._has(image):
                with account.environment() as env:
                    self._call(["pull", image], env=env)
        elif self.config.environment.force_pull_image:
            self._call(["pull", image])

    def _has(self, image: str) -> bool:
        words = [self.engine, "image", "inspect", image]
        return not subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode  # noqa: S603  the user's engine

    def _call(self, words: Sequence[str], *, given: str = "", env: Mapping[str, str] | None = None) -> None:
        done = subprocess.run(  # noqa: S603  the user's engine
            [self.engine, *words], input=given, text=True, capture_output=True, check=False, env=env
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            reason = lines[-1]
            for secret in self.account.secrets() if self.account else ():
                reason = reason.replace(secret, MASK)
            raise LightlibError(
                f"{self.engine} {words[0]} failed: {reason}",
                expected=f"an image that this machine can get: {self.config.environment.image[self.kind]}.",
                fix="correct environment.image or environment.registry_auth; `docker pull` shows the reason.",
            )

    def words(
        self,
        name: str,
        attempt: Path,
        context: Path,
        slots: Sequence[Slot],
        variables: Iterable[str],
        command: Sequence[str],
    ) -> tuple[str, ...]:
        """Return the command line of the container of an attempt.

        Args:
            name: Of the container.
            attempt: The folder of the attempt, in which the command runs.
            context: The folder of the user's code, of which `startup-hook.sh` runs first.
            slots: Of the attempt.
            variables: The names of those that the container gets from the environment of the engine's client, so that
                their values are in no command line.
            command: In the container.
        """
        config, environment = self.config, self.config.environment
        hidden = _VISIBLE if self.kind == "cuda" else ()  # in the container, GPUs are counted from 0
        names = [variable for variable in (*variables, *_MORE) if variable not in hidden]
        launcher = ContainerLauncher(
            environment.image[self.kind],
            mounts={str(self.folder): str(self.folder)},
            env={"HOME": "/tmp", **dict.fromkeys(names, None)},  # noqa: S108  of the container
            gpus=f'"device={",".join(str(slot.number) for slot in slots)}"' if self.kind == "cuda" else None,
            shm_size=str(config.resources.shm_size),
            engine="podman" if self.engine == "podman" else "docker",
            options=[
                "--interactive",
                "--init",
                f"--name={name}",
                f"--workdir={attempt}",
                f"--user={os.getuid()}:{os.getgid()}",
                *(["--userns=keep-id"] if self.engine == "podman" and os.getuid() else []),
                *(f"--cap-add={capability}" for capability in environment.add_capabilities),
                *(f"--cap-drop={capability}" for capability in environment.drop_capabilities),
                *(
                    f"--device={device.host_path}:{device.container_path}:{device.mode}"
                    for device in config.resources.devices
                ),
                *self._mounts(attempt),
            ],
        )
        return tuple(launcher.command(["sh", "-c", _SHELL, str(context), *command]))

    def _mounts(self, attempt: Path) -> list[str]:
        mounts = self._store()
        for mount in self.config.bind_mounts:
            target = os.path.join(attempt, mount.container_path)
            more = (",readonly" if mount.read_only else "") + f",bind-propagation={mount.propagation}"
            mounts.append(f"--mount=type=bind,source={mount.host_path},target={target}{more}")
        return mounts

    def _store(self) -> list[str]:
        """Return the mount of the folder in which checkpoints are stored, at its own path."""
        storage = self.config.checkpoint_storage
        top = storage.host_path or storage.location or ""
        mounted = {os.path.normpath(mount.container_path) for mount in self.config.bind_mounts}
        if not top or is_remote(top) or os.path.normpath(top) in mounted:
            return []
        path = local_path(top)
        return [f"--mount=type=bind,source={path},target={path},bind-propagation={storage.propagation}"]


def remove(engine: str, name: str) -> None:
    """End a container and all its processes, if it is still there."""
    subprocess.run(  # noqa: S603  the user's engine
        [engine, "rm", "--force", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
