"""Stores as mappings with a type: shared_fs, directory, s3, gcs or azure, with keys and addresses."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from lightlib.checkpoint.storage.options import StorageOptions
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, closest, shown

__all__ = ["storage_of", "storage_url"]

_AZURE = ".blob.core.windows.net"
_OF_GC = ("save_experiment_best", "save_trial_best", "save_trial_latest")
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # by type: those that are needed, and the rest
    "shared_fs": (("host_path",), ("storage_path",)),
    "directory": (("container_path",), ()),
    "s3": (("bucket",), ("prefix", "access_key", "secret_key", "endpoint_url")),
    "gcs": (("bucket",), ("prefix",)),
    "azure": (("container",), ("prefix", "connection_string", "account_url", "credential")),
}


def storage_url(storage: Mapping[str, Any]) -> str:
    """Return the folder or URL of a store that is described as in Determined's ``checkpoint_storage``.

    Keys and addresses are remembered by this process: everything below the URL is opened with them. No checkpoint has
    them. `ModelCheckpoint(dirpath=…)` and `Trainer(default_root_dir=…)` take such a mapping as well.

    - ``shared_fs`` needs ``host_path``, and may have ``storage_path``, within it.
    - ``directory`` needs ``container_path``.
    - ``s3`` needs ``bucket``, and may have ``prefix``, ``access_key`` with ``secret_key``, and ``endpoint_url``.
    - ``gcs`` needs ``bucket``, and may have ``prefix``.
    - ``azure`` needs ``container``, and ``connection_string`` or ``account_url``; it may have ``prefix`` and
      ``credential``.

    Without keys, fsspec's package for the store finds them as it does for a URL.

    Raises:
        ArgumentTypeError: It is no mapping, or a value is no string.
        MisconfigurationException: A key is missing or unknown, or two exclude each other.
        UnknownNameError: There is no such type.

    Example:
        >>> storage_url({"type": "gcs", "bucket": "models", "prefix": "run/1"})
        'gs://models/run/1'
    """
    return storage_of(storage).address


def storage_of(storage: Mapping[str, Any]) -> StorageOptions:
    """Return the URL of a store with its options; see `storage_url`."""
    if not isinstance(storage, Mapping):
        raise ArgumentTypeError(
            f"The store of checkpoints is {shown(storage)}.",
            expected="a dict with a type.",
            fix='{"type": "s3", "bucket": "models"}',
        )
    kind = storage.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise UnknownNameError("type of a store", kind, _KEYS, fix='{"type": "s3", "bucket": "models"}')
    values = {str(key): value for key, value in storage.items() if key != "type" and value is not None}
    _check_keys(kind, values)
    address, options = _BY_TYPE[kind](values)
    return StorageOptions(address, options)


def _check_keys(kind: str, values: Mapping[str, Any]) -> None:
    needed, more = _KEYS[kind]
    for key, value in values.items():
        if key not in (*needed, *more):
            near = closest(key, (*needed, *more))
            raise MisconfigurationException(
                f"The store of type {kind!r} has the key {key!r}.{f' Did you mean {near!r}?' if near else ''}",
                expected=f"type, {', '.join((*needed, *more))}.",
                fix=f"CheckpointGC({key}={value!r}, …), a callback."
                if key in _OF_GC
                else f"{near!r} instead of {key!r}."
                if near
                else f"leave out {key!r}.",
            )
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
            raise ArgumentTypeError(
                f"The store of type {kind!r} has {key}: {type(value).__name__}.",
                expected="a string that is not empty.",
                fix=f'{{"type": "{kind}", "{key}": "…"}}',
            )
    missing = [key for key in needed if key not in values]
    if missing:
        raise MisconfigurationException(
            f"The store of type {kind!r} has no {missing[0]!r}.",
            expected=f"the keys type, {', '.join(needed)}.",
            fix=f'{{"type": "{kind}", "{missing[0]}": "…"}}',
        )


def _shared(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    host = os.path.realpath(os.path.expanduser(values["host_path"]))
    path = os.path.realpath(os.path.join(host, values.get("storage_path", "")))
    if path != host and not path.startswith(os.path.join(host, "")):
        raise MisconfigurationException(
            f"storage_path {str(values['storage_path'])!r} leads out of host_path {host!r}.",
            expected="a path within host_path.",
            fix='{"type": "shared_fs", "host_path": "/mnt/shared", "storage_path": "checkpoints"}',
        )
    return path, {}


def _directory(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    return os.path.realpath(os.path.expanduser(values["container_path"])), {}


def _s3(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    keys = [key for key in ("access_key", "secret_key") if key in values]
    if len(keys) == 1:
        other = "secret_key" if keys == ["access_key"] else "access_key"
        raise MisconfigurationException(
            f"The store of type 's3' has {keys[0]}, but no {other}.",
            expected="both, or none of them to use the credentials of this machine.",
            fix=f"give {other} as well, or leave out {keys[0]}.",
        )
    names = {"access_key": "key", "secret_key": "secret", "endpoint_url": "endpoint_url"}
    return _url("s3", "bucket", values), {name: values[key] for key, name in names.items() if key in values}


def _gcs(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    return _url("gs", "bucket", values), {}


def _azure(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    keys = [key for key in ("connection_string", "account_url") if key in values]
    if len(keys) != 1 or ("credential" in values and keys == ["connection_string"]):
        both = "connection_string and " + ("credential" if len(keys) == 1 else "account_url")
        raise MisconfigurationException(
            f"The store of type 'azure' has {both if keys else 'neither connection_string nor account_url'}.",
            expected="connection_string alone, or account_url, which may have a credential.",
            fix='{"type": "azure", "container": "models", "account_url": "https://name.blob.core.windows.net"}',
        )
    address = _url("az", "container", values)
    if keys == ["connection_string"]:
        return address, {"connection_string": values["connection_string"]}
    host = urlsplit(values["account_url"]).hostname
    if not host:
        raise MisconfigurationException(
            f"The store of type 'azure' has the account_url {values['account_url']!r}.",
            expected="a URL.",
            fix='"account_url": "https://name.blob.core.windows.net"',
        )
    options = {"account_name": host.partition(".")[0]}
    options |= {} if host.endswith(_AZURE) else {"account_host": host}
    return address, options | ({"credential": values["credential"]} if "credential" in values else {})


def _url(protocol: str, key: str, values: Mapping[str, Any]) -> str:
    name, prefix = str(values[key]), str(values.get("prefix", "")).strip("/")
    if "/" in name or ".." in prefix.split("/"):
        raise MisconfigurationException(
            f"The store has {key}: {name!r}, prefix: {prefix!r}.",
            expected=f"the name of a {key}, and a prefix without '..'.",
            fix=f'{{…, "{key}": "models", "prefix": "run/1"}}',
        )
    return f"{protocol}://{name}/{prefix}".rstrip("/")


_BY_TYPE: dict[str, Callable[[Mapping[str, Any]], tuple[str, dict[str, Any]]]] = {
    "shared_fs": _shared,
    "directory": _directory,
    "s3": _s3,
    "gcs": _gcs,
    "azure": _azure,
}
