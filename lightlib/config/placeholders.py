"""Placeholders in a configuration: ints for the parser, and text in a saved file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from typing_extensions import Self

from lightlib.config.yaml.document import Dumper
from lightlib.errors import MisconfigurationException
from lightlib.schedulers.placeholders import Placeholder, expression


class LateInt(int):
    """An int that is known only when the run begins, as ``NUM_EPOCHS * 2`` in the arguments of a scheduler.

    Args:
        text: The expression.

    Attributes:
        placeholder: The same as an object.
    """

    placeholder: Placeholder

    def __new__(cls, text: str) -> Self:
        placeholder = expression(text)
        assert placeholder is not None
        self = super().__new__(cls, 1)
        self.placeholder = placeholder
        return self

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]  # an int's holds the int
        return (repr(self.placeholder),)

    def __repr__(self) -> str:
        return repr(self.placeholder)


def _text_of(dumper: Any, value: LateInt) -> Any:
    return dumper.represent_str(repr(value))


for _dumper in (yaml.SafeDumper, Dumper):
    yaml.add_representer(LateInt, _text_of, Dumper=_dumper)


def with_late_ints(value: Any) -> Any:
    """Return the arguments of a scheduler with its expressions of placeholders as ints."""
    if isinstance(value, str):
        return value if expression(value) is None else LateInt(value)
    if isinstance(value, list):
        return [with_late_ints(item) for item in value]
    return {key: with_late_ints(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def with_placeholders(value: Any) -> Any:
    """Return arguments with their late ints as placeholders; the same object if there are none."""
    if isinstance(value, LateInt):
        return value.placeholder
    if isinstance(value, Mapping):
        entries = {key: with_placeholders(entry) for key, entry in value.items()}
        return entries if any(entries[key] is not entry for key, entry in value.items()) else value
    if isinstance(value, (list, tuple)):
        items = [with_placeholders(item) for item in value]
        return type(value)(items) if any(a is not b for a, b in zip(items, value, strict=True)) else value
    return value


def refuse_late_ints(class_path: str, arguments: Mapping[str, Any]) -> None:
    """Raise if an object that is built before the run has a placeholder among its arguments."""
    late = with_placeholders(arguments)
    if late is not arguments:
        name = next(name for name in arguments if late[name] is not arguments[name])
        raise MisconfigurationException(
            f"{class_path} is built with the placeholder {name}: {late[name]}, which the run has not put in.",
            expected="placeholders in the `lr_scheduler` that the command line itself returns to the Trainer.",
            fix="write a number, or build a functools.partial in configure_optimizers with lightlib.schedulers."
            "TOTAL_UPDATE_STEPS.",
        )
