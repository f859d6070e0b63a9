"""Callbacks as users give them: one, several, classes, words for presets, and dicts of names."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightlib import registry
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.presets.callback_presets import preset
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, shown

DEFAULTS = {"progress": "ProgressBar", "summary": "ModelSummary", "checkpoint": "Checkpoint"}  # name: base class
if TYPE_CHECKING:
    _One = Callback | type[Callback] | str | Mapping[str, Callback | type[Callback] | bool | None]
    CallbacksArgument = Iterable[_One | None] | _One
else:
    CallbacksArgument = Iterable[Callback] | Callback  # what the command line reads
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def callbacks_in(given: Any) -> list[Any]:
    """Return the callbacks of an argument that is one, any iterable of several, or None; classes are made.

    Raises:
        ArgumentTypeError: A class needs arguments.
        MisconfigurationException: A class is given twice, or next to an object of it.
    """
    items = _items(given)
    callbacks = [_instance_of(item) for item in items]
    _refuse_twice([item for item in items if isinstance(item, type)], callbacks)
    return callbacks


def callbacks_of_packages() -> list[Any]:
    """Return the callbacks that installed packages add by the entry points ``lightlib.callbacks_factory``."""
    callbacks: list[Any] = []
    for point in registry.entry_points("lightlib.callbacks_factory"):
        callbacks.extend(callbacks_in(point.load()()))
    return callbacks


@dataclass
class NamedCallbacks:
    """The callbacks of a Trainer's argument.

    Attributes:
        callbacks: In the given order. One that is given by a name takes the place of an earlier one of that name.
        without: The names of the defaults that the user leaves out.
    """

    callbacks: list[Any] = field(default_factory=list)
    without: set[str] = field(default_factory=set)
    _named: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, argument: Any) -> NamedCallbacks:
        """Return the callbacks of `Trainer(callbacks=argument)`.

        Raises:
            ArgumentTypeError: A class needs arguments, or what has a name is no callback.
            MisconfigurationException: A default has the name of another kind of callback.
            UnknownNameError: A word is no preset, or a name that is left out belongs to nothing.
        """
        named_callbacks, classes = cls(), list[type]()
        for entry in _items(argument):
            if isinstance(entry, (str, Mapping)):
                named = preset(entry) if isinstance(entry, str) else entry
                named_callbacks._add(named)
                classes += [value for value in named.values() if isinstance(value, type)]
            else:
                named_callbacks.callbacks.append(_instance_of(entry))
                classes += [entry] if isinstance(entry, type) else []
        _refuse_twice(classes, named_callbacks.callbacks)
        return named_callbacks

    def _add(self, named: Mapping[Any, Any]) -> None:
        for name, value in named.items():
            if value is None or value is False:
                self._leave_out(name)
            elif value is True and name in DEFAULTS:
                self._leave_out(name)
                self.without.discard(name)
            else:
                self._put(name, _checked(name, _instance_of(value)))

    def _put(self, name: str, callback: Any) -> None:
        before = self._named.get(name)
        place = next((i for i, callback in enumerate(self.callbacks) if callback is before), len(self.callbacks))
        self.callbacks[place : place + 1] = [callback]
        self._named[name] = callback
        self.without.discard(name)

    def _leave_out(self, name: Any) -> None:
        if name not in DEFAULTS and name not in self._named:
            names = [*DEFAULTS, *self._named]
            raise UnknownNameError("name of a callback to leave out", name, names, fix='callbacks={"progress": None}')
        gone = self._named.pop(name, None)
        self.callbacks = [callback for callback in self.callbacks if callback is not gone]
        if name in DEFAULTS:
            self.without.add(name)


def _items(argument: Any) -> list[Any]:
    several = isinstance(argument, Iterable) and not isinstance(argument, (Callback, Mapping, str, type))
    return [entry for entry in (argument if several else [argument]) if entry is not None]


def _refuse_twice(classes: Iterable[type], callbacks: list[Any]) -> None:
    for cls in classes:
        if sum(type(callback) is cls for callback in callbacks) > 1:
            raise MisconfigurationException(
                f"callbacks holds the class {cls.__name__} and another {cls.__name__}.",
                expected="every callback once; otherwise its hooks are called twice.",
                fix=f"leave out the class {cls.__name__}; objects with different arguments may be several.",
            )


def _instance_of(callback: Any) -> Any:
    """Return an object of a class of callbacks; anything else as it is."""
    if not (isinstance(callback, type) and issubclass(callback, Callback) and callback is not Callback):
        return callback
    parameters = inspect.signature(callback).parameters.values()
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in _ANY_NUMBER
    ]
    if needed:
        arguments = ", ".join(f"{name}=…" for name in needed)
        raise ArgumentTypeError(
            f"callbacks holds the class {callback.__name__}, which needs {' and '.join(map(repr, needed))}.",
            expected="an object, or a class that can be made without arguments.",
            fix=f"callbacks=[{callback.__name__}({arguments})]",
        )
    return callback()


def _checked(name: Any, value: Any) -> Any:
    from lightlib import callbacks as known  # optional: rich, only when a bar is named

    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"callbacks has {shown(name)} as a name.", expected="names as strings.", fix='callbacks={"progress": None}'
        )
    if not isinstance(value, Callback):
        raise ArgumentTypeError(
            f"callbacks[{name!r}] is {shown(value)}.",
            expected="a callback, its class, or None to leave out a callback of this name.",
            fix='callbacks={"checkpoint": ModelCheckpoint(monitor="val_loss"), "progress": None}',
        )
    base = getattr(known, DEFAULTS.get(name, "Callback"))
    if not isinstance(value, base):
        raise MisconfigurationException(
            f"callbacks[{name!r}] is a {type(value).__name__}.",
            expected=f"a {base.__name__}, as this is the name of a default, or None to leave it out.",
            fix=f"give {type(value).__name__} another name.",
        )
    return value
