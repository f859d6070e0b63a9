"""Hyperparameters as plain values for files and servers: flattened, with secrets masked."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import enum
import math
import os
import types
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from lightlib.report import MASK, is_secret, without_passwords

__all__ = ["MASK", "flatten", "from_omegaconf", "is_config", "plain", "put", "stored_config", "unresolved"]


def plain(params: Any) -> dict[str, Any]:
    """Return `params` as nested dicts and lists of numbers, strings, bools and None, with secrets masked.

    Args:
        params: A mapping, a dataclass instance, a Namespace, or None (which gives an empty dict). Other values in it
            become their `repr`; arrays and tensors with one element become numbers.

    A value is masked as ``"***"`` when its name contains password, secret, credential, api_key or the like, or when it
    is a string whose name ends in token (but not ``pad_token``, ``eos_token`` and the like). None stays None.

    Example:
        >>> plain({"lr": 0.1, "optimizer": {"betas": (0.9, 0.99)}, "hf_token": "hf_abc", "max_tokens": 512})
        {'lr': 0.1, 'optimizer': {'betas': [0.9, 0.99]}, 'hf_token': '***', 'max_tokens': 512}
    """
    params = from_omegaconf(params)
    if params is None:
        return {}
    fields = _fields(params)
    if fields is None:
        raise TypeError(f"hyperparameters must be a mapping, a dataclass or a Namespace, got {params!r}")
    return {str(name): _value(str(name), value) for name, value in fields.items()}


def flatten(params: Any, separator: str = "/") -> dict[str, int | float | str | bool]:
    """Return `params` in one level, the names of nested values joined by `separator`, with secrets masked.

    Example:
        >>> flatten({"lr": 0.1, "optimizer": {"name": "adam", "betas": (0.9, 0.99), "password": 1}})
        {'lr': 0.1, 'optimizer/name': 'adam', 'optimizer/betas': '[0.9, 0.99]', 'optimizer/password': '***'}
    """
    flat: dict[str, int | float | str | bool] = {}

    def add(prefix: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, dict) and value:
                add(f"{prefix}{name}{separator}", value)
            else:
                flat[f"{prefix}{name}"] = value if isinstance(value, (int, float, str)) else repr(value)

    add("", plain(params))
    return flat


def is_config(value: Any) -> bool:
    """Whether `value` is a container of OmegaConf."""
    if type(value).__module__.partition(".")[0] != "omegaconf":
        return False
    from omegaconf import OmegaConf  # optional: omegaconf

    return OmegaConf.is_config(value)


def stored_config(value: Any, plain: Any) -> Any:
    """Return the container of OmegaConf that a checkpoint stores in place of `value`, without its parent.

    Args:
        value: A container of OmegaConf, perhaps a node of a larger one.
        plain: Its content, without secrets.
    """
    from omegaconf import OmegaConf  # optional: omegaconf

    def common(value: Any, kept: Any) -> Any:
        is_both = isinstance(value, dict) and isinstance(kept, dict)
        return {key: common(value[key], kept[key]) for key in value if key in kept} if is_both else value

    flags = {"allow_objects": True}
    config = OmegaConf.create(common(unresolved(value), plain), flags=flags)
    # A reference may point to a secret, or out of this container.
    return config if from_omegaconf(config) == plain else OmegaConf.create(plain, flags=flags)


def unresolved(value: Any) -> Any:
    """Return a container of OmegaConf as dicts and lists that keep its ``${…}``; any other object unchanged."""
    if not is_config(value):
        return value
    from omegaconf import OmegaConf  # optional: omegaconf

    return OmegaConf.to_container(value, resolve=False)


def put(config: Any, name: str, value: Any) -> None:
    """Set an entry of a DictConfig, also of one that is read-only."""
    from omegaconf import flag_override  # optional: omegaconf

    with flag_override(config, ["readonly", "struct"], [False, False]):
        config[name] = value


def refill(config: Any, content: Any, in_place: bool = True) -> Any:
    """Give a container of OmegaConf another content, also one that is read-only, or return another one like it."""
    from omegaconf import flag_override  # optional: omegaconf

    config = config if in_place else copy.deepcopy(config)
    with flag_override(config, ["readonly", "struct"], [False, False]):
        keyed = isinstance(content, Mapping)
        for name in list(config.keys()) if keyed else range(len(config) - 1, -1, -1):
            del config[name]  # clear() would resolve every value
        config.update(content) if keyed else config.extend(content)
    return config


def from_omegaconf(value: Any) -> Any:
    """Return an OmegaConf container as dicts and lists, with `${…}` resolved; any other object unchanged."""
    if not is_config(value):
        return value
    from omegaconf import OmegaConf  # optional: omegaconf

    try:
        return OmegaConf.to_container(value, resolve=True)
    except Exception:  # noqa: BLE001  of a resolver of the user's: unknown names stay unresolved
        return OmegaConf.to_container(value, resolve=False)


def _fields(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
        return vars(value)
    return None


def _value(name: str, value: Any) -> Any:
    if is_secret(name, value):
        return MASK
    value = from_omegaconf(value)
    if isinstance(value, str):
        return without_passwords(str(value.value if isinstance(value, enum.Enum) else value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _value(name, value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    fields = _fields(value)
    if fields is not None:
        return {str(key): _value(str(key), item) for key, item in fields.items()}
    if isinstance(value, (list, tuple)):
        return [_value(name, item) for item in value]
    if isinstance(value, AbstractSet):
        return [_value(name, item) for item in sorted(value, key=repr)]
    return _as_text(name, value)


def _as_text(name: str, value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return _value(name, os.fspath(value))
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and math.prod(shape) == 1 and hasattr(value, "item"):
        return _value(name, value.item())
    return repr(value)
