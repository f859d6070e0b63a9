"""Part: a section of an experiment file as a frozen dataclass, with a field for each key."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import Self, dataclass_transform

from lightlib import report
from lightlib.experiment.file import checks
from lightlib.experiment.file.checks import Check
from lightlib.experiment.file.masks import masked_at
from lightlib.experiment.file.place import Place


def key(check: Check, *, default: Any = dataclasses.MISSING) -> Any:
    """Return a field of a `Part`: one key of the file.

    Args:
        check: Returns the value in its final form, or raises.
        default: The value if the key is missing or null. Default: none, and the key is required.
    """
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata={"check": check})
    return dataclasses.field(default=default, metadata={"check": check})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(key, dataclasses.field))
class Part:
    """Base of the sections of an experiment.

    Class attributes:
        section: The dotted key of the section, under which its repr hides secrets.
        ignored: Keys that are accepted and have no effect, with the reason. A value other than nothing is noted.
    """

    section: ClassVar[str] = ""
    ignored: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(cls)

    @classmethod
    def read(cls, value: Any, place: Place) -> Self:
        """Return the section that a mapping describes.

        Raises:
            ConfigError: A key is unknown or missing, or a value has the wrong type or is out of range.
        """
        mapping = checks.mapping(cls.expanded(value, place), place)
        checks_by_name = {name: field.metadata["check"] for name, field in cls.known().items()}
        values = {}
        for name, entry in mapping.items():
            here = place.below(name)
            if name in cls.ignored:
                note_ignored(here, entry, cls.ignored[name])
            elif name not in checks_by_name:
                cls.unknown(here, entry, checks_by_name)
            elif entry is not None:
                values[name] = checks_by_name[name](entry, here)
        for name in cls.required():
            if name not in values:
                cls.missing(name, place)
        return cls(**values).checked(place)

    @classmethod
    def known(cls) -> dict[str, dataclasses.Field[Any]]:
        """Return the fields that are keys of the file, by name."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # every subclass is a dataclass
        return {field.name: field for field in fields if field.metadata}

    @classmethod
    def expanded(cls, value: Any, place: Place) -> Any:  # noqa: ARG003  for those that override it
        """Return the mapping for a short form. Default: the value itself."""
        return value

    @classmethod
    def unknown(cls, place: Place, value: Any, known: Mapping[str, Any]) -> None:
        """Raise for a key that the section does not have."""
        place.unknown(value, known, of=place.key.rpartition(".")[0] or "an experiment")

    @classmethod
    def required(cls) -> tuple[str, ...]:
        """Return the keys without a default."""
        fields = cls.known().items()
        return tuple(name for name, field in fields if field.default is field.default_factory is dataclasses.MISSING)

    @classmethod
    def missing(cls, name: str, place: Place) -> None:
        """Raise for a key that is required and missing."""
        place.refuse(f"has no {name!r}.", f"the key {name}, which has no default.", f"add {place.below(name).key}: …")

    def checked(self, place: Place) -> Self:
        """Check keys that depend on each other. Default: nothing."""
        return self

    def plain(self) -> dict[str, Any]:
        """Return the section as plain values, defaults filled in; `read` returns an equal section."""
        values = {name: plain(getattr(self, name)) for name in self.known()}
        return {name: value for name, value in values.items() if value not in (None, {}, [])}

    def __repr__(self) -> str:
        hidden = masked_at(self.section, self.plain())
        defaults = {name: plain(field.default) for name, field in self.known().items()}
        words = (f"{name}={value!r}" for name, value in hidden.items() if value != defaults[name])
        return f"{type(self).__name__}({', '.join(words)})"


def plain(value: Any) -> Any:
    """Return a value of a field as plain values."""
    if hasattr(value, "plain"):
        return value.plain()
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    return copy.deepcopy(value)


def note_ignored(place: Place, value: Any, reason: str) -> None:
    """Print that a key has no effect; nothing if it is empty or false."""
    if value not in (None, False, "", {}, []):
        report.info(f"{place.text} is ignored: {reason}")
