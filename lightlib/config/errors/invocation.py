"""Invocation: the flags and files of a command line, and the place of each value in them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from lightlib.config.yaml.document import Entry
from lightlib.config.yaml.file import ConfigError, Document, Sources, text_of
from lightlib.errors import closest


def plain(key: str) -> str:
    """Return a key as it is written on the command line: without `init_args` and the index in a list."""
    return ".".join(part for part in key.split(".") if part != "init_args" and not part.isdigit())


def assignment(key: str, value: str, in_file: bool) -> str:
    """Return an assignment as a line of a file, or as a flag."""
    return f"{key.rpartition('.')[2]}: {value}" if in_file else f"--{plain(key)}={value}"


def imported(path: str) -> Any:
    """Return the object at a path if its module has been imported, else None; nothing is imported here."""
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


class Setting(NamedTuple):
    """A value that was given in a file, as an option or as a variable; an empty one was given nowhere."""

    key: str = ""  # as in `plain`, also without class_path
    value: Any = None  # of an option its text, None without one
    place: str = ""  # "run.yaml, line 7"
    written: str = ""  # a single value as it is written: `yes` for True
    path: str = ""  # in a file: the full key, with init_args and the index in a list

    @property
    def in_file(self) -> bool:
        """Whether it was given in a file."""
        return bool(self.path)

    @property
    def text(self) -> str:
        """The place as it is appended to the value in a message: ``" (run.yaml, line 7)"``."""
        return f" ({self.place})" if self.place else ""


class Invocation:
    """The command line and the configuration files of one call of a parser, the main one or that of a sub-command.

    By default the words are those given to the parser, or ``sys.argv``, and the sub-command is that of the parser, or
    the first among the words.
    """

    def __init__(
        self,
        parser: argparse.ArgumentParser,
        sources: Sources | None = None,
        argv: Sequence[str] | None = None,
        verb: str | None = None,
    ) -> None:
        self.parser = parser
        self.main: argparse.ArgumentParser = getattr(parser, "parent_parser", None) or parser
        self.sources = sources or Sources()
        words = getattr(self.main, "args", None) if argv is None else argv
        self.argv = list(sys.argv[1:] if words is None else words)
        self.verbs = _verbs_of(self.main)
        verb = verb or (getattr(parser, "subcommand", None) if parser is not self.main else None)
        self.verb: str | None = verb or next((word for word in self.argv if word in self.verbs), None)

    def of_verb(self, verb: str | None) -> Invocation:
        """Return the same invocation for another sub-command; None changes nothing."""
        return Invocation(self.parser, self.sources, self.argv, verb or self.verb)

    @property
    def command(self) -> str:
        """The program and its sub-command: ``"lightlib fit"``."""
        return f"{self.main.prog} {self.verb}" if self.verb else self.main.prog

    @cached_property
    def settings(self) -> list[Setting]:
        """The settings in their order: those of the files, then the options."""
        files = (setting for document in self.sources.documents for setting in self._settings_in(document))
        return [*files, *self.flags]

    @cached_property
    def flags(self) -> list[Setting]:
        """The options of the command line, in order."""
        flags = []
        for word, following in zip(self.argv, [*self.argv[1:], "--"], strict=False):
            option, equals, value = word.partition("=")
            if word.startswith("-") and word.strip("-"):
                key = option.lstrip("-").removesuffix("+")
                text = value if equals else None if following.startswith("--") else following
                key = "config" if key == "c" else _without_class_path(key)
                flags.append(Setting(key, text, "on the command line", text or ""))
        return flags

    def _settings_in(self, document: Document) -> Iterator[Setting]:
        for path, entry in document.entries.items():
            key = path.replace("+.", ".").removesuffix("+")
            verb, _, rest = key.partition(".")
            if verb not in self.verbs or not rest:
                yield _in_file(key, entry)
            elif verb == self.verb:
                yield _in_file(rest, entry)

    def options(self) -> list[str]:
        """Return the keys that the sub-command takes."""
        return [action.dest for action in self._actions if action.option_strings and "help" not in action.dest]

    @property
    def _actions(self) -> list[argparse.Action]:
        return _actions_of(self.verbs.get(self.verb or "", self.parser))

    def without_verb(self, key: str) -> str:
        """Return a key without the sub-command it may begin with."""
        verb, _, rest = key.partition(".")
        return rest if verb in self.verbs and rest else key

    def skipped(self, key: str) -> set[str]:
        """Return the arguments of the class at `key` that the program fills in by itself."""
        action = next((action for action in self._actions if action.dest == self.without_verb(key)), None)
        return {name for name in getattr(action, "sub_add_kwargs", {}).get("skip", ()) if isinstance(name, str)}

    def location(self, key: str, value: str | None = None) -> Setting:
        """Return where `key` was given last, or the nearest key above it; of several, the one that has `value`."""
        at = self.without_verb(key)
        settings = self.given(at)
        same = with_value(settings, value) or [setting for setting in settings if setting.path == at] or settings
        exact = [setting for setting in same if setting.path in (at, f"{at}.class_path")]
        setting_found = next(reversed(exact or same), self._variable(at))
        above = at.rpartition(".")[0]
        return setting_found if setting_found.place or not above else self.location(above)

    def given(self, key: str) -> list[Setting]:
        """Return all that was given for `key`; for the items of a list they are together."""
        key = plain(key)
        return [
            candidate
            for setting in self.settings
            for candidate in (setting, *_included(setting, key))
            if candidate.key == key
        ]

    def nearest_key(self, key: str) -> str:
        """Return the known key nearest to `key`, or an empty string: one of this name, of its group, or of any."""
        every_option = self.options()
        group, _, leaf = key.rpartition(".")
        same_leaf = [option for option in every_option if option.rpartition(".")[2] == leaf]
        if same_leaf:
            return closest(key, same_leaf, same_leaf[0])
        for options in ([option for option in every_option if option.rpartition(".")[0] == group], every_option):
            leaves = {option.rpartition(".")[2]: option for option in options}
            if near := closest(leaf, leaves):
                return leaves[near]
        return ""

    def _variable(self, key: str) -> Setting:
        end = "__".join(plain(key).upper().split("."))
        names = os.environ if getattr(self.parser, "default_env", False) else ()
        name = next((name for name in names if f"_{name}".endswith(f"_{end}")), "")
        return Setting(plain(key), place=f"in the environment variable {name}" if name else "")


def _in_file(path: str, entry: Entry) -> Setting:
    return Setting(_without_class_path(path), entry.value, entry.place, entry.written, path)


def _without_class_path(key: str) -> str:
    return "" if key.endswith("init_args") else plain(key.removesuffix(".class_path"))


def _included(setting: Setting, key: str) -> Iterator[Setting]:
    """Yield the settings of a file that is the value of a key above `key`."""
    if not key.startswith(f"{setting.key}.") or not setting.written.endswith((".yaml", ".yml", ".json")):
        return
    path = os.path.join(os.path.dirname(setting.place) if setting.in_file else "", setting.written)
    with suppress(ConfigError):  # the parser reports it
        for below, entry in Document(text_of(path), path).entries.items():
            yield _in_file(f"{setting.path or setting.key}.{below}", entry)


def with_value(settings: list[Setting], value: str | None) -> list[Setting]:
    """Return those with a value: `false` and `False` are the same, and a class has a name with or without a module."""
    if value is None:
        return []
    name = value.rpartition(".")[2]
    same = [setting for setting in settings if str(setting.value).casefold() == value.casefold()]
    named = [setting for setting in settings if str(setting.value).rpartition(".")[2] == name]
    return same or (named if name.isidentifier() else [])


def _actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001  # argparse has no public way; this one has existed since 2009


def _verbs_of(parser: argparse.ArgumentParser) -> Mapping[str, Any]:
    choices = (action.choices for action in _actions_of(parser) if isinstance(action.choices, dict))
    return next(choices, None) or {}
