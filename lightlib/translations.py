"""Names and class paths of other frameworks, by the group "translations" of the registry."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple, Protocol

from lightlib.registry import modules

__all__ = [
    "Foreign", "Translation", "attribute", "class_path", "find_spec", "fix_for", "fix_for_import", "foreign", "kind_of",
    "start_of_commands", "translated",
]  # fmt: skip


class Foreign(NamedTuple):
    """An object of another framework.

    Attributes:
        kind: The name of its class in the framework, or of the base class there.
        package: That has this class.
        fix: How to run the program with lightlib, as a clause.
    """

    kind: str
    package: str
    fix: str


class Translation(Protocol):
    """A module of the registry: it gives our objects by the names of another framework."""

    def attribute(self, module: str, name: str) -> Any:
        """Return the object behind a name that a module of lightlib does not define.

        Raises:
            AttributeError: The framework does not have it, either; ImportError if a statement imports the name.
        """

    def find_spec(self, name: str) -> ModuleSpec | None:
        """Return the spec of a module below `lightlib` that has no file, None if the framework has none."""

    def class_path(self, path: str) -> str:
        """Return our class path for one of the framework; any other path as it is.

        Raises:
            MisconfigurationException: The framework has the class, and lightlib has none for it.
        """

    def translated(self, value: Any) -> Any:
        """Return a value of a configuration in which all class paths of the framework are ours."""

    def kind_of(self, path: str) -> str:
        """Return the path of the class to build for one of our classes, which has the framework's methods as well."""

    def foreign(self, value: Any) -> Foreign | None:
        """Return the package of an object, or a class, of the framework, and the fix; None for any other."""

    def fix_for_import(self, error: str, *, in_command: bool) -> str:
        """Return the fix for the message of a failed import of the framework; empty for any other.

        Args:
            in_command: Whether a command of lightlib imports it, and not a program.
        """

    def start_of_commands(self) -> list[str]:
        """Return the words that follow ``lightlib`` in the commands of this process; empty if there are none."""


def attribute(module: str, name: str) -> Any:
    """Return the object behind a name that a module of lightlib does not define.

    Raises:
        AttributeError: No framework has it, either; ImportError if a statement imports the name.
    """
    errors: list[Exception] = []
    for translation in _translations():
        try:
            return translation.attribute(module, name)
        except (AttributeError, ImportError) as error:
            errors.append(error)
    explained = (error for error in errors if isinstance(error, ImportError))
    raise next(explained, AttributeError(f"module {module!r} has no attribute {name!r}"))


def find_spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module below `lightlib` that has no file, None if there is none."""
    specs = (translation.find_spec(name) for translation in _translations())
    return next((spec for spec in specs if spec is not None), None)


def class_path(path: str) -> str:
    """Return our class path for one of another framework; any other path as it is."""
    for translation in _translations():
        path = translation.class_path(path)
    return path


def translated(value: Any) -> Any:
    """Return a value of a configuration in which all class paths are ours; `value` itself is not changed."""
    for translation in _translations():
        value = translation.translated(value)
    return value


def kind_of(path: str) -> str:
    """Return the path of the class to build for one of our classes."""
    for translation in _translations():
        path = translation.kind_of(path)
    return path


def foreign(value: Any) -> Foreign | None:
    """Return the package of an object, or a class, of another framework, and the fix; None for any other."""
    answers = (translation.foreign(value) for translation in _translations())
    return next((answer for answer in answers if answer is not None), None)


def fix_for(value: Any) -> str:
    """Return the fix for an object, or a class, of another framework; empty for any other."""
    foreign_value = foreign(value)
    return "" if foreign_value is None else foreign_value.fix


def fix_for_import(error: str, *, in_command: bool = True) -> str:
    """Return the fix for the message of a failed import of another framework; empty for any other.

    Args:
        in_command: Whether a command of lightlib imports it, and not a program.
    """
    fixes = (translation.fix_for_import(error, in_command=in_command) for translation in _translations())
    return next(filter(None, fixes), "")


def start_of_commands() -> list[str]:
    """Return the words that follow ``lightlib`` in the commands of this process."""
    return [word for translation in _translations() for word in translation.start_of_commands()]


@cache
def _translations() -> tuple[Translation, ...]:
    loaded: list[Any] = [importlib.import_module(module) for module in modules("translations").values()]
    return tuple(loaded)
