"""Places of keys in an experiment file, and three-part errors that name them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from lightlib.config.yaml.document import ConfigError, Entry
from lightlib.config.yaml.file import dump
from lightlib.errors import closest
from lightlib.experiment.file.masks import masked_at, shown_key

_LONGEST = 80  # characters of a value in an error


class Place(NamedTuple):
    """A key of an experiment, and where it was written.

    Attributes:
        key: The dotted key, for instance ``"resources.slots_per_trial"``; an item of a list has its index.
        entries: The places of all keys.
        source: The name of the file; empty for a mapping.
    """

    key: str
    entries: dict[str, Entry]
    source: str = ""

    def below(self, name: object) -> Place:
        """Return the place of a key below this one."""
        return self._replace(key=f"{self.key}.{name}" if self.key else str(name))

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition(".")[2]

    @property
    def where(self) -> str:
        """The file and line, ``"mnist.yaml, line 7"``; those of the nearest key above if it was not written."""
        key = self.key
        while key and key not in self.entries:
            key = key.rpartition(".")[0]
        return self.entries[key].place if key else self.source

    @property
    def text(self) -> str:
        """The key with its file and line, as errors name it."""
        name = repr(shown_key(self.key)) if self.key else "The experiment"
        return f"{name} ({self.where})" if self.where else name

    def line(self, value: Any, key: str = "") -> str:
        """Return ``key: value`` for the fix of an error, or ``--config key=value`` if that set the key."""
        name = key or self.key
        written = dump(masked_at(name, value), flow=True).removesuffix("\n...")
        if self.where.startswith("--config"):
            return f"--config {shlex.quote(f'{name}={written}')}"
        return f"{name}: {written}"

    def shown(self, value: Any) -> str:
        """Return a value as an error shows it: on one line, with its type, without secrets."""
        hidden = masked_at(self.key, value)
        text = " ".join(repr(hidden).split())
        return f"{text[:_LONGEST]}{'…' if len(text) > _LONGEST else ''} ({type(value).__name__})"

    def wrong(self, value: Any, expected: str, fix: str) -> NoReturn:
        """Raise for a value of the wrong type or out of range."""
        raise ConfigError(f"{self.text} is {self.shown(value)}.", expected=expected, fix=fix)

    def refuse(self, problem: str, expected: str, fix: str) -> NoReturn:
        """Raise for a key; `problem` continues the sentence that begins with it."""
        raise ConfigError(f"{self.text} {problem}", expected=expected, fix=fix)

    def unknown(self, value: Any, known: Iterable[str], *, of: str, meant: str = "") -> NoReturn:
        """Raise for a key that does not exist, with the nearest name; `of` is the section, `meant` a dotted key."""
        names = sorted(known)
        near = meant or closest(self.name, names)
        above = self.key.removesuffix(self.name)
        right = meant or (f"{above}{near}" if near else "")
        fix = "delete it."
        if right:
            fix = f"{right}: …" if isinstance(value, dict) else self.line(value, right)
        raise ConfigError(
            f"{self.text} is not a key of {of}.{f' Did you mean {near!r}?' if near else ''}",
            expected=f"one of {', '.join(names)}.",
            fix=fix,
        )
