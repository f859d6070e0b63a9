"""Secrets of a configuration: masked in saved files, and read from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from jsonargparse import Namespace

from lightlib.report import LOGIN, MASK, is_secret, without_passwords


def variable_of(key: str) -> str:
    """Return the environment variable that holds the secret of a key.

    Example:
        >>> variable_of("model.init_args.hf_token")
        'LIGHTLIB_SECRET_HF_TOKEN'
    """
    return "LIGHTLIB_SECRET_" + re.sub("[^A-Z0-9]", "_", key.rpartition(".")[2].upper())


def masked(config: Any) -> Any:
    """Return a configuration, of Namespaces, dicts and lists, with ``***`` for its secrets.

    Secrets are texts whose name, or that of a key above them, looks like one (`lightlib.report.is_secret`), and
    passwords in URLs. Names of classes are none.

    Example:
        >>> masked({"model": {"api_key": "abc", "width": 3}, "uri": "https://me:abc@host/db"})
        {'model': {'api_key': '***', 'width': 3}, 'uri': 'https://me:***@host/db'}
    """
    return _changed(config, _mask)


def from_environment(config: Any) -> Any:
    """Return a configuration with the values of environment variables for those of its secrets that are masked."""
    return _changed(config, _unmask)


def still_masked(config: Any, key: str = "", hidden: bool = False) -> Iterator[str]:
    """Yield the dotted keys of the secrets that are masked.

    Args:
        config: Of Namespaces, dicts and lists.
        key: That of `config` in a larger one. Default: it is all.
        hidden: Whether `config` is below the key of a secret. Default False.
    """
    entries = vars(config) if isinstance(config, Namespace) else config
    named = isinstance(entries, dict)
    for name, value in entries.items() if isinstance(entries, dict) else enumerate(entries):
        path = f"{key}.{name}" if key else str(name)
        if isinstance(value, (Namespace, dict, list, tuple)):
            yield from still_masked(value, path, hidden or (named and is_secret(name, 0)))
        elif (
            type(value) is str
            and MASK in value
            and name != "class_path"
            and _is_masked(value, hidden or (named and is_secret(name, value)))
        ):
            yield path


def _mask(key: str, value: str, secret: bool) -> str:  # noqa: ARG001  one signature for both
    if secret:
        return MASK if value else value
    return without_passwords(value)


def _unmask(key: str, value: str, secret: bool) -> str:
    secret_value = os.environ.get(variable_of(key))
    if secret_value is None or not _is_masked(value, secret):
        return value
    return secret_value if value == MASK else value.replace(f":{MASK}@", f":{secret_value}@")


def _is_masked(value: str, secret: bool) -> bool:
    if value == MASK:
        return secret
    match = LOGIN.search(value)
    return match is not None and match[2] == MASK


def _changed(config: Any, change: Callable[[str, str, bool], str], key: str = "", hidden: bool = False) -> Any:
    """Return a copy with each text changed by ``change(key, text, secret)``; `hidden`: below the key of a secret."""
    if (entries := _entries(config)) is not None:
        changed = {
            name: change(str(name), value, hidden or is_secret(name, value))
            if _is_text(name, value)
            else _changed(value, change, str(name), hidden or is_secret(name, 0))
            for name, value in entries.items()
        }
        return Namespace(**changed) if isinstance(config, Namespace) else changed  # type: ignore[no-untyped-call]  # its
    if type(config) in (list, tuple):
        items = (change(key, x, hidden) if type(x) is str else _changed(x, change, key, hidden) for x in config)
        return type(config)(items)
    return config


def _entries(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, Namespace):
        return vars(value)
    return value if type(value) is dict else None


def _is_text(name: object, value: object) -> bool:
    return type(value) is str and name != "class_path"
