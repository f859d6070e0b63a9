"""Store: where the checkpoints of an experiment are, in its folder or in its `checkpoint_storage`."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lightlib import optional, report
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.options import remember
from lightlib.checkpoint.storage.retries import reason_of
from lightlib.errors import LightlibError, MisconfigurationException
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.file.storage import CheckpointStorage
from lightlib.experiment.job import CHECKPOINT_STORAGE, CHECKPOINTS

FILE = ".store"  # in the folder of the experiment: the name of its folder in the store
MARK = "experiment"  # a copy of that file, in its folder in the store
Location = Path | str  # a path, or the URL of a store
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}


class Store:
    """The checkpoints of an experiment that has begun.

    Args:
        folder: Of the experiment.
        config: It. Its keys of the store are used from now on for all that this process reads there.

    Raises:
        MisconfigurationException: These keys are masked, and no environment variable has them.
    """

    def __init__(self, folder: Path, config: ExperimentConfig) -> None:
        self._storage = config.checkpoint_storage
        self._top: str | None = None
        if self._storage.type is not None:
            config.require_secrets("checkpoint_storage")
            name = (folder / FILE).read_text().strip()
            self._top = filesystem.join(_address(self._storage), name)

    @staticmethod
    def begin(folder: Path, new: Path, config: ExperimentConfig) -> None:
        """Give an experiment a folder in the store; of several processes that begin it at once, one chooses the name.

        Args:
            folder: Of the experiment.
            new: A folder in it for a file that is being written.
            config: The experiment.
        """
        if config.checkpoint_storage.type is None:
            return
        name = re.sub(r"[^a-zA-Z0-9_.-]+", "-", config.name)
        (new / FILE).write_text(f"{name}-{secrets.token_hex(4)}\n")
        with suppress(FileExistsError):
            os.link(new / FILE, folder / FILE)
        store = Store(folder, config)
        with store._reached():
            filesystem.copy(folder / FILE, filesystem.join(str(store._top), MARK))

    @staticmethod
    def name_in(folder: Path) -> str | None:
        """Return the name of an experiment's folder in its store; None without a store."""
        with suppress(FileNotFoundError):
            return (folder / FILE).read_text().strip()
        return None

    def require(self) -> None:
        """Raise if this is not the store in which the experiment has begun: its trials would start from nothing.

        Raises:
            MisconfigurationException: It is not.
        """
        if self._top is None:
            return
        with self._reached():
            there = filesystem.exists(filesystem.join(self._top, MARK))
        if not there:
            raise MisconfigurationException(
                f"The checkpoints of the experiment are not in {self._top!r}, as seen from this machine.",
                expected=f"the store with which it began; there, the folder has a file {MARK}.",
                fix="mount the shared folder, or correct the address and the keys of the store.",
            )

    def place(self, attempt: Path) -> str | None:
        """Return the folder or URL of an attempt's checkpoints in the store; None without a store."""
        return self._top and filesystem.join(filesystem.join(self._top, attempt.parent.name), attempt.name)

    def saved(self, attempt: Path, path: str, *, stored: bool) -> Location:
        """Return the path or URL of a checkpoint.

        Args:
            attempt: The folder of its attempt.
            path: As the attempt has sent it.
            stored: Whether it is in the store.
        """
        if filesystem.is_remote(path):
            return path
        where = self.place(attempt) if stored else str(attempt)
        return location(filesystem.join(where or str(attempt), path))

    def last(self, attempt: Path, name: str) -> Location:
        """Return the path or URL that a checkpoint of this name has, if there is one."""
        return location(filesystem.join(self.place(attempt) or str(attempt / CHECKPOINTS), name))

    def existing(self, found: Iterable[Location]) -> list[Location]:
        """Return the checkpoints that exist, in their order; each folder of a store is listed once."""
        listed: dict[str, list[str]] = {}
        there: list[Location] = []
        for path in found:
            if isinstance(path, Path):
                there += [path] if path.exists() else []
                continue
            above, _, name = path.rpartition("/")
            if above not in listed:
                with self._reached():
                    listed[above] = filesystem.names_in(above)
            there += [path] if name in listed[above] else []
        return there

    def remove(self, checkpoint: Location) -> None:
        """Delete a checkpoint."""
        with self._reached(), suppress(FileNotFoundError):
            filesystem.remove(checkpoint)

    def variables(self) -> dict[str, str]:
        """Return the environment variables with which a trial opens the store; they may be secrets."""
        options = self._storage.options()
        address = self._storage.location
        return {CHECKPOINT_STORAGE: json.dumps({"address": address, "options": options})} if options else {}

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Raise one kind of error, without secrets, for all that a store raises."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  the package of each store has its own
            raise LightlibError(
                f"The checkpoints in {self._top!r} could not be accessed: {_shown(error, self._storage)}",
                expected="a store that answers, and that this user may read and write.",
                fix="the same command again, once it does.",
            ) from None


def location(text: str) -> Location:
    """Return a URL as it is, and anything else as a path."""
    return text if filesystem.is_remote(text) else Path(filesystem.local_path(text))


def check_store(config: ExperimentConfig, *, contained: bool = False) -> None:
    """Refuse a `checkpoint_storage` that does not work here, before anything of the experiment is written.

    Args:
        config: The experiment.
        contained: Whether trials run in containers.

    Raises:
        ConfigError: It cannot be accessed, a package is missing, a key has no effect, or trials cannot save there.
    """
    storage, place = config.checkpoint_storage, config.places.below("checkpoint_storage")
    if storage.type is None:
        return
    key = {"shared_fs": "host_path", "directory": "container_path"}.get(storage.type, "url")
    top = storage.location or ""
    if storage.propagation != CheckpointStorage.propagation and not config.environment.image:
        problem = f"is {storage.propagation!r}, and has no effect without environment.image."
        place.below("propagation").refuse(problem, "trials in containers, of which it is an option.", "delete it.")
    if report.has_password(top):
        place.below("url").refuse(
            "has a password, which would be in the logs and checkpoints of trials.",
            "a URL without one.",
            "the keys in the variables or files that the package of the store reads.",
        )
    if filesystem.is_remote(top):
        _check_package(top, config)
    else:
        _check_folder(config, filesystem.local_path(top), key, contained)
    address = _address(storage)
    try:
        filesystem.check_writable(address, "A trial")
    except LightlibError as error:
        line = _shown(error, storage).partition("\n")[0]
        reason = line.partition(": ")[2] or line
        place.refuse(
            f"is {top!r}, which cannot be written: {reason}", "a store that answers.", "correct it, or its keys."
        )


def _check_package(top: str, config: ExperimentConfig) -> None:
    """Refuse a URL of which trials could not read the checkpoints again, and one without its package."""
    import fsspec  # optional: fsspec

    place, (protocol, _, _) = config.places.below("checkpoint_storage"), top.partition("://")
    if protocol == "memory":
        problem = f"is {top!r}, which ends with each process."
        place.refuse(problem, "a store that outlives its processes.", "delete it: checkpoints are in the folder.")
    if config.entrypoint is not None and config.entrypoint.command:
        place.below("type").refuse(
            f"leads to {top!r}, and the trials are a command, which saves its checkpoints into a folder.",
            "shared_fs or directory; or no checkpoint_storage, and a program that saves into the store itself.",
            "checkpoint_storage: {type: shared_fs, host_path: /shared/checkpoints}",
        )
    try:
        fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        package = _PACKAGES.get(protocol)
        place.refuse(
            f"is {top!r}, which needs a package: {reason_of(error)}.",
            "the package of the store, on each machine.",
            optional.install(package) if package else "install that package.",
        )


def _check_folder(config: ExperimentConfig, top: str, key: str, contained: bool) -> None:
    """Refuse a folder that is not the same one on each machine and in each container."""
    place = config.places.below(f"checkpoint_storage.{key}")
    base = config.checkpoint_storage.host_path or top
    if not os.path.isabs(base) or not os.path.isdir(base):
        problem = "does not exist on this machine" if os.path.isabs(base) else "is relative"
        place.refuse(
            f"is {base!r}, which {problem}.", "the absolute path of a folder that each machine has.", "create it."
        )
    for mount in config.bind_mounts if contained else ():
        inside = os.path.normpath(mount.container_path)
        if inside in (top, *map(str, Path(top).parents)) and inside != os.path.normpath(mount.host_path):
            place.refuse(
                f"is {base!r}, where containers have the folder {mount.host_path!r} of bind_mounts.",
                "a folder with the same path on the machine, where its worker finds the checkpoints.",
                "checkpoint_storage: {type: shared_fs, host_path: …}, which containers get at its own path.",
            )


def _address(storage: CheckpointStorage) -> str:
    """Return the folder or URL of a store; from now on this process opens it with its keys."""
    address = storage.location or ""
    if not filesystem.is_remote(address):
        return os.path.normpath(filesystem.local_path(address))
    remember(address, storage.options())
    return address


def _shown(error: BaseException, storage: CheckpointStorage) -> str:
    """Return the text of an error without the keys of the store."""
    text = report.without_passwords(str(error) or type(error).__name__)
    for value in (storage.secret_key, storage.access_key, storage.connection_string, storage.credential):
        text = text.replace(value, report.MASK) if value else text
    return text
