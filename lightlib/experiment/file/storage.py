"""The section `checkpoint_storage`: where checkpoints are stored, and how many are kept."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import Self

from lightlib.checkpoint.storage.mapping import storage_of
from lightlib.experiment.file import checks
from lightlib.experiment.file.part import Part, key, plain
from lightlib.experiment.file.place import Place

_KEPT = ("save_experiment_best", "save_trial_best", "save_trial_latest")
KEYS: Mapping[str, tuple[str, ...]] = {  # by type
    "shared_fs": ("host_path", "storage_path", "propagation"),
    "directory": ("container_path",),
    "s3": ("bucket", "access_key", "secret_key", "prefix", "endpoint_url"),
    "gcs": ("bucket", "prefix"),
    "azure": ("container", "connection_string", "account_url", "credential"),
    "url": ("url",),
}
REQUIRED = {
    "shared_fs": "host_path",
    "directory": "container_path",
    "s3": "bucket",
    "gcs": "bucket",
    "azure": "container",
    "url": "url",
}
_EXAMPLES = {
    "host_path": "/shared/checkpoints",
    "container_path": "/checkpoints",
    "bucket": "my-bucket",
    "container": "my-container",
    "url": "s3://my-bucket/checkpoints",
}
_REMOVED = "Determined removed it."

_path = checks.text("checkpoints")


class CheckpointStorage(Part):
    """Where checkpoints are stored, and how many are kept.

    Each type reads its own keys, which `lightlib.experiment.file.storage.KEYS` lists. Keys of an account that are not
    in the file come from the environment, as the library of the store reads them; those in the file are masked.

    Attributes:
        type: ``"shared_fs"``, ``"directory"``, ``"s3"``, ``"gcs"``, ``"azure"`` or ``"url"``. Default None: the folder
            of the experiment.
        save_experiment_best: How many of the best of all trials are kept. Default 0.
        save_trial_best: How many of the best of each trial are kept. Default 1.
        save_trial_latest: How many of the latest of each trial are kept. Default 1.
        host_path: The folder of ``shared_fs`` on each machine.
        storage_path: A folder in it: relative, or absolute and below it. Default: `host_path` itself.
        propagation: Of Docker, for containers. Default ``"rprivate"``.
        container_path: The folder of ``directory``.
        bucket: Of ``s3`` and ``gcs``, and `prefix` a folder in it, without ``..``.
        access_key: Of ``s3``, as `secret_key`. `endpoint_url` is for stores other than Amazon's.
        container: Of ``azure``, with a `connection_string`, or an `account_url` and its `credential`.
        url: Any URL that fsspec knows.
    """

    section: ClassVar[str] = "checkpoint_storage"
    ignored: ClassVar[dict[str, str]] = {
        "checkpoint_path": _REMOVED,
        "tensorboard_path": _REMOVED,
        "user": _REMOVED,
    }

    type: str | None = key(checks.choice(*KEYS), default=None)
    save_experiment_best: int = key(checks.integer(0), default=0)
    save_trial_best: int = key(checks.integer(0), default=1)
    save_trial_latest: int = key(checks.integer(0), default=1)
    host_path: str | None = key(_path, default=None)
    storage_path: str | None = key(_path, default=None)
    propagation: str = key(_path, default="rprivate")
    container_path: str | None = key(_path, default=None)
    bucket: str | None = key(_path, default=None)
    access_key: str | None = key(checks.text("…"), default=None)
    secret_key: str | None = key(checks.text("…"), default=None)
    prefix: str | None = key(_path, default=None)
    endpoint_url: str | None = key(checks.text("http://127.0.0.1:9000/"), default=None)
    container: str | None = key(_path, default=None)
    connection_string: str | None = key(checks.text("…"), default=None)
    account_url: str | None = key(checks.text("https://me.blob.core.windows.net"), default=None)
    credential: str | None = key(checks.text("…"), default=None)
    url: str | None = key(checks.text("s3://my-bucket/checkpoints"), default=None)

    @classmethod
    def expanded(cls, value: Any, place: Place) -> Any:
        """Fill in the type ``url``, and refuse keys of another type."""
        if not isinstance(value, dict):
            return value
        kind = value.get("type")
        if kind is None and value.get("url") is not None:
            value, kind = {"type": "url", **value}, "url"
        if kind is not None:
            checks.choice(*KEYS)(kind, place.below("type"))
        for name, setting in value.items():
            owners = [owner for owner, keys in KEYS.items() if name in keys]
            if owners and setting is not None and kind not in owners:
                place.below(name).refuse(
                    f"is not a key of {f'the type {kind}' if kind else 'a storage without a type'}: it belongs to "
                    f"{', '.join(owners)}.",
                    f"one of {', '.join((*KEYS.get(kind or '', ()), *_KEPT))}.",
                    f"delete it, or write checkpoint_storage.type: {owners[0]}",
                )
        return value

    def checked(self, place: Place) -> Self:
        needed = REQUIRED.get(self.type or "")
        if needed and getattr(self, needed) is None:
            missing, example = f"the key {needed} of the type {self.type}.", place.below(needed).line(_EXAMPLES[needed])
            place.refuse(f"has no {needed!r}.", missing, example)
        if self.prefix and ".." in self.prefix.split("/"):
            here = place.below("prefix")
            here.wrong(self.prefix, "a path without `..`.", here.line("checkpoints"))
        if self.storage_path and self.host_path and not _inside(self.storage_path, self.host_path):
            here = place.below("storage_path")
            expected = f"a relative path, or one below host_path, which is {self.host_path}."
            here.wrong(self.storage_path, expected, here.line("checkpoints"))
        if self.type == "azure":
            self._check_azure(place)
        return self

    def _check_azure(self, place: Place) -> None:
        expected = "connection_string, or account_url and its credential."
        if (self.connection_string is None) == (self.account_url is None):
            both = "a connection_string and an account_url" if self.account_url else "no connection_string"
            place.refuse(f"has {both}.", expected, "write one of connection_string and account_url.")
        if self.connection_string is not None and self.credential is not None:
            here = place.below("credential")
            here.refuse("stands next to connection_string, which holds one.", expected, "delete credential.")

    @property
    def location(self) -> str | None:
        """The folder or fsspec URL of the checkpoints; None: the folder of the experiment.

        Example:
            >>> CheckpointStorage(type="s3", bucket="weights", prefix="/a/.//b").location
            's3://weights/a/b'
        """
        if self.type == "shared_fs":
            return posixpath.normpath(posixpath.join(self.host_path or "", self.storage_path or ""))
        schemes = {"s3": "s3", "gcs": "gs", "azure": "az"}
        if self.type in schemes:
            inside = posixpath.normpath(f"/{self.prefix.lstrip('/')}") if self.prefix else ""
            return f"{schemes[self.type]}://{self.bucket or self.container}{inside}".rstrip("/")
        return self.url or self.container_path

    def options(self) -> dict[str, Any]:
        """Return fsspec's options for the location, which may be secrets: the keys and the address of the store.

        Raises:
            MisconfigurationException: Of `s3`, one of `access_key` and `secret_key` is missing.

        Example:
            >>> CheckpointStorage(type="s3", bucket="b", endpoint_url="http://127.0.0.1:9000").options()
            {'endpoint_url': 'http://127.0.0.1:9000'}
        """
        if self.type not in ("s3", "azure"):
            return {}
        keys = (name for name in KEYS[self.type] if name != "prefix")
        return dict(storage_of({"type": self.type, **{name: getattr(self, name) for name in keys}}).options)

    def plain(self) -> dict[str, Any]:
        """Return the keys of this type as plain values."""
        values = {name: plain(getattr(self, name)) for name in ("type", *KEYS.get(self.type or "", ()), *_KEPT)}
        return {name: value for name, value in values.items() if value is not None}


def _inside(path: str, folder: str) -> bool:
    full, top = posixpath.normpath(posixpath.join(folder, path)), posixpath.normpath(folder)
    return full == top or full.startswith(f"{top.rstrip('/')}/")
