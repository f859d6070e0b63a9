"""Hyperparameters: the arguments that build a module or data module, saved as plain values."""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lightlib import report
from lightlib.conventions import leniency
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers.hyperparameters import from_omegaconf, is_config, stored_config
from lightlib.report import has_password, is_secret

_INITIALISERS = ("__init__", "__post_init__")
# While an object is built from a configuration: its class, and the configured values.
_given: ContextVar[tuple[type, dict[str, Any]] | None] = ContextVar("given hyperparameters", default=None)


@contextmanager
def given_hyperparameters(kind: type, values: dict[str, Any]) -> Iterator[None]:
    """Make `save_hyperparameters` of the `kind` built inside keep these values instead of the arguments themselves.

    Names that begin with an underscore are always kept.
    """
    token = _given.set((kind, values))
    try:
        yield
    finally:
        _given.reset(token)


class AttributeDict(dict[str, Any]):
    """A dictionary with keys that can be read and written as attributes, also those of the dicts in it.

    It holds the dicts that it was given; an attribute that is a dict is read as an :class:`AttributeView` of it.

    Example:
        >>> hparams = AttributeDict(lr=0.1, optimizer={"betas": {"first": 0.9}})
        >>> hparams.lr, hparams.optimizer.betas.first
        (0.1, 0.9)
    """

    def __getattr__(self, key: str) -> Any:
        try:
            value = self[key]
        except KeyError:
            names = ", ".join(map(repr, self)) or "none"
            raise AttributeError(f"No hyperparameter is named {key!r}; there are: {names}.") from None
        return AttributeView(value) if type(value) is dict and not leniency().keeps_objects else value

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def __delattr__(self, key: str) -> None:
        del self[key]

    def __repr__(self) -> str:
        width = max((len(str(key)) for key in self), default=0)
        return "\n".join(f'"{key}":{" " * (width - len(str(key)))} {value}' for key, value in self.items())


class AttributeView(AttributeDict):
    """A dict of hyperparameters, read and written through attributes; a copy of the view is no longer one.

    It is a dict with the same entries, for code that reads dicts without their methods (`json`).
    """

    if not TYPE_CHECKING:  # these call the methods below, where dict's would see this object alone
        __contains__, __eq__, get = MutableMapping.__contains__, MutableMapping.__eq__, MutableMapping.get
        keys, values, items = MutableMapping.keys, MutableMapping.values, MutableMapping.items
        pop, popitem, clear = MutableMapping.pop, MutableMapping.popitem, MutableMapping.clear
        update, setdefault = MutableMapping.update, MutableMapping.setdefault

    def __init__(self, source: dict[str, Any]) -> None:
        super().__init__(source)
        object.__setattr__(self, "_source", source)
        if (yaml := sys.modules.get("yaml")) is not None:
            for dumper in (yaml.SafeDumper, getattr(yaml, "CSafeDumper", yaml.SafeDumper)):
                dumper.add_representer(AttributeView, _represented)

    def __getitem__(self, key: str) -> Any:
        source: dict[str, Any] = self.__dict__["_source"]
        return source[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.__dict__["_source"][key] = value
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: str) -> None:
        del self.__dict__["_source"][key]
        dict.pop(self, key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__["_source"])

    def __len__(self) -> int:
        return len(self.__dict__["_source"])

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __or__(self, other: Any) -> Any:
        return AttributeDict({**self, **other})

    def copy(self) -> AttributeDict:
        return AttributeDict(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return AttributeDict, (dict(self),)


def _represented(dumper: Any, view: AttributeView) -> Any:
    return dumper.represent_dict(dict(view))


def with_attributes(value: Any) -> Any:
    """Return `value` with its dicts as `AttributeDict`, as configurations were before they were stored."""
    if type(value) is dict:
        return AttributeDict({key: with_attributes(item) for key, item in value.items()})
    return [with_attributes(item) for item in value] if type(value) is list else value


class HyperparametersMixin:
    """Adds `save_hyperparameters` and `hparams` to modules and data modules."""

    _log_hyperparams: bool = False
    _hparams_name: str | None = None

    @property
    def hparams(self) -> AttributeDict:
        """The hyperparameters; empty before `save_hyperparameters()`. Changes are saved with the next checkpoint."""
        hparams: AttributeDict = self.__dict__.setdefault("_hparams", AttributeDict())
        return hparams

    @property
    def hparams_initial(self) -> AttributeDict:
        """The hyperparameters as they were first saved (a copy)."""
        initial: AttributeDict = self.__dict__.get("_hparams_initial", AttributeDict())
        return copy.deepcopy(initial)

    def save_hyperparameters(
        self,
        *args: Any,
        ignore: str | Iterable[str] | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Keep the arguments of `__init__` as `self.hparams`, for checkpoints and loggers.

        Args:
            args: Names of the arguments to keep (default: all), or one dictionary, Namespace or dataclass.
            ignore: Names to leave out.
            frame: The frame of the `__init__` to read; default: the caller's.
            logger: Whether the loggers get them.

        Raises:
            MisconfigurationException: A name is no argument of `__init__`, or the call is not in `__init__`.
            ArgumentTypeError: The arguments are neither names nor one object.

        Example:
            >>> import lightlib
            >>> class Net(lightlib.Module):
            ...     def __init__(self, width: int = 8, lr: float = 0.1):
            ...         super().__init__()
            ...         self.save_hyperparameters(ignore="lr")
            >>> Net(width=4).hparams
            "width": 4
        """
        if len(args) == 1 and _stays_config(args[0]):
            self._keep_config(args[0], frame or _caller(), logger)
            return
        left_out = {ignore} if isinstance(ignore, str) else set(ignore or ())
        name = "kwargs"
        if is_config(self.__dict__.get("_hparams")):  # of an earlier call
            self.__dict__["_hparams"] = AttributeDict()
        if args and not all(isinstance(arg, str) for arg in args):
            arguments, name = _from_object(args, frame or _caller())
        else:
            frame = frame or _caller()
            if frame.f_code.co_name not in _INITIALISERS:
                raise MisconfigurationException(
                    f"save_hyperparameters was called in `{frame.f_code.co_name}`, where the arguments of "
                    f"{type(self).__name__}.__init__ are no longer known.",
                    expected="a call in __init__ itself, or one dictionary of hyperparameters.",
                    fix=f"move it to {type(self).__name__}.__init__.",
                )
            arguments = _configured(self) or init_arguments(frame, self)
            unknown = [arg for arg in args if arg not in arguments]
            if unknown:
                raise MisconfigurationException(
                    f"save_hyperparameters got {unknown[0]!r}, which is no argument of {type(self).__name__}.__init__.",
                    expected="one of " + ", ".join(map(repr, arguments)) + ".",
                    fix="correct the name, or call save_hyperparameters() without names to keep all.",
                )
            arguments = (
                {key: arguments[key] for key in arguments if key in args or key.startswith("_")} if args else arguments
            )
        kept = {key: value for key, value in arguments.items() if key not in left_out}
        for key in left_out:
            self.hparams.pop(key, None)
        for key, value in kept.items():
            if isinstance(value, nn.Module):
                report.warn(
                    f"The hyperparameter {key!r} is a torch.nn.Module: its weights are in the checkpoint already and "
                    f"it cannot be stored as a plain value. Leave it out: save_hyperparameters(ignore={key!r}).",
                    report.PossibleUserWarning,
                )
        self.hparams.update(kept)
        self._log_hyperparams = logger
        self._hparams_name = name
        self.__dict__["_hparams_initial"] = AttributeDict({k: _copied(v) for k, v in self.hparams.items()})

    def _set_hparams(self, hp: Any) -> None:
        """Add hyperparameters to those that there are, under a name of Lightning's that graphium and NeMo call."""
        if _stays_config(hp):
            self.__dict__["_hparams"] = hp
            return
        hparams = _from_object((hp,), _caller())[0]
        if is_config(self.__dict__.get("_hparams")):
            self.__dict__["_hparams"] = AttributeDict()
        self.hparams.update(hparams)

    def _keep_config(self, config: Any, frame: FrameType, logger: bool) -> None:
        """Keep one configuration of OmegaConf as it is, as Lightning does."""
        self.__dict__["_hparams"], self.__dict__["_hparams_initial"] = config, _copied(config)
        self._log_hyperparams, self._hparams_name = logger, _name_of(config, frame)


def _stays_config(hparams: Any) -> bool:
    return leniency().keeps_objects and is_config(hparams)


def _configured(owner: object) -> dict[str, Any] | None:
    cls, values = _given.get() or (None, None)
    return values if type(owner) is cls else None


def _caller() -> FrameType:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    assert frame is not None
    return frame


def _from_object(args: tuple[Any, ...], frame: FrameType) -> tuple[dict[str, Any], str]:
    source = args[0]
    if len(args) == 1 and (values := _entries(source)) is not None:
        return values, _name_of(source, frame)
    raise ArgumentTypeError(
        f"save_hyperparameters got {', '.join(type(a).__name__ for a in args)}.",
        expected="names of arguments, or one dictionary, argparse.Namespace or dataclass.",
        fix="save_hyperparameters() keeps all arguments of __init__.",
    )


def _name_of(source: Any, frame: FrameType) -> str:
    """Return the name of the local variable that is `source`, or else of one that `source` is a copy of."""
    values = {key: value for key, value in frame.f_locals.items() if key != "self"}
    names = [key for key, value in values.items() if value is source]
    names += [key for key, value in values.items() if _is_copy(source, value)]
    return names[0] if names else "kwargs"


def _is_copy(source: Any, value: Any) -> bool:
    if not isinstance(source, Mapping) or not isinstance(value, Mapping) or not source:
        return False
    try:
        return bool(value == source)
    except Exception:  # noqa: BLE001  tensors have no single truth value; values may compare as they like
        return False


def init_arguments(frame: FrameType | None, owner: Any) -> dict[str, Any]:
    """Return the arguments of all `__init__` calls of `owner` on the stack; the outermost class wins."""
    if frame is not None and frame.f_code.co_name == "__post_init__" and is_dataclass(owner):
        return {field.name: getattr(owner, field.name) for field in fields(owner) if field.init}
    arguments: dict[str, Any] = {}
    while frame is not None and frame.f_code.co_name == "__init__":
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        if not names or frame.f_locals.get(names[0]) is not owner:
            break
        arguments |= _arguments_of(frame)
        frame = frame.f_back
    return arguments


def _arguments_of(frame: FrameType) -> dict[str, Any]:
    names, _, keywords, values = inspect.getargvalues(frame)
    arguments = {name: values[name] for name in names[1:] if name in values}
    return {**arguments, **(values.get(keywords, {}) if keywords else {})}


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  an object that cannot be copied is kept as it is
        return value


def plain_hparams(hparams: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the hyperparameters that can be stored as plain values, and the names of those that cannot or must not.

    Values whose names look like secrets (password, api_key, …), and URLs with a password, are not stored. Paths become
    strings, enumerations their values, NumPy numbers Python's, torch dtypes and devices their names.
    """
    stored: dict[str, Any] = {}
    left_out: list[str] = []
    for key, value in from_omegaconf(hparams).items():
        try:
            stored[key] = _plain(value)
        except TypeError:
            left_out.append(key)
    left_out += _remove_secrets(stored)
    return stored, left_out


def secrets_among(hparams: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return those of the names of hyperparameters, dotted for nested ones, that are left out as secrets."""
    plain = {name: _at(hparams, name) for name in names}
    return [name for name, value in plain.items() if is_secret(name.rpartition(".")[2], "") or has_password(value)]


def _at(hparams: Mapping[str, Any], name: str) -> Any:
    value: Any = hparams
    for key in [name] if name in hparams else name.split("."):
        value = (_entries(from_omegaconf(value)) or {}).get(key)
    return value


def picklable(hparams: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return those of the named hyperparameters that can be stored as objects, except secrets."""
    kept: dict[str, Any] = {}
    for name in names:
        if name in hparams and not is_secret(str(name), "") and not has_password(hparams[name]):
            with contextlib.suppress(Exception):  # an object may raise anything as it is pickled
                pickle.dumps(hparams[name])
                kept[name] = hparams[name]
    return kept


def with_objects(hparams: Mapping[str, Any], stored: dict[str, Any], left: Iterable[str]) -> tuple[Any, list[str]]:
    """Return the hyperparameters to store where objects are kept, and the names of those that are objects.

    Args:
        hparams: All hyperparameters; a DictConfig stays one.
        stored: Their plain values, without secrets.
        left: The names of those that are no plain values.
    """
    objects = picklable(from_omegaconf(hparams), left)
    if is_config(hparams):
        return stored_config(hparams, stored | objects), [*stored, *objects]
    objects |= {name: stored_config(hparams[name], stored[name]) for name in stored if is_config(hparams[name])}
    return stored | objects, list(objects)


def _remove_secrets(stored: dict[Any, Any], where: str = "") -> list[str]:
    """Remove values that look like secrets, also from nested dicts, and return their names."""
    removed = []
    for name, value in list(stored.items()):
        if isinstance(value, dict):
            removed += _remove_secrets(value, f"{where}{name}.")
        elif (is_secret(str(name), value) and isinstance(value, (str, bytes))) or has_password(value):
            del stored[name]
            removed.append(f"{where}{name}")
    return removed


def _plain(value: Any) -> Any:
    value = from_omegaconf(value)
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, (str, PurePath, torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        values = [_plain(v) for v in value]
        return tuple(values) if isinstance(value, tuple) else values
    if (entries := _entries(value)) is not None:
        return {_plain_key(key): _plain(v) for key, v in entries.items()}
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a NumPy number
        return value.item()
    raise TypeError(type(value).__name__)


def _entries(value: Any) -> dict[Any, Any] | None:
    """Return the entries of a mapping, Namespace or dataclass; None for any other object."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Namespace):
        return vars(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def _plain_key(key: Any) -> Any:
    key = key.value if isinstance(key, Enum) else key
    return key if type(key) in (str, int, float, bool) else str(key)
