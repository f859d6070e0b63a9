"""Invocation: the flags and files of a command line, and the place of each value in them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from lightlib.config.yaml.file import ConfigError, Place, Sources, text_of
from lightlib.errors import closest

__all__ = ["Invocation", "Location", "assignment", "imported", "plain"]


def plain(key: str) -> str:
    """Return a key as it is written on the command line: without `init_args` and the index in a list.

    Example:
        >>> plain("trainer.callbacks.0.init_args.patience")
        'trainer.callbacks.patience'
    """
    return ".".join(part for part in key.split(".") if part != "init_args" and not part.isdigit())


def assignment(key: str, value: str, in_file: bool) -> str:
    """Return an assignment as a line of a file, or as a flag."""
    return f"{key.rpartition('.')[2]}: {value}" if in_file else f"--{plain(key)}={value}"


def imported(path: str) -> Any:
    """Return the object at a path if its module has been imported, else None; nothing is imported here."""
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


class Location(NamedTuple):
    """Where a value was given; `text` is appended to the value in a message: ``" (run.yaml, line 7)"``."""

    text: str
    in_file: bool = False


class Flag(NamedTuple):
    """One option of the command line."""

    key: str
    word: str
    value: str | None


class Invocation:
    """The command line and the configuration files of one call of a parser.

    Args:
        parser: The parser that raised the error: the main one, or that of a sub-command.
        sources: The configuration files read so far.
        argv: The words of the command line. Default: those given to the parser, or ``sys.argv``.
        verb: The sub-command. Default: that of the parser, or the first on the command line.
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
        given = getattr(self.main, "args", None) if argv is None else argv
        self.argv = list(sys.argv[1:] if given is None else given)
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

    @property
    def flags(self) -> list[Flag]:
        """The options of the command line, in order."""
        flags = []
        for word, following in zip(self.argv, [*self.argv[1:], "--"], strict=False):
            if word.startswith("-") and word.strip("-"):
                option, equals, value = word.partition("=")
                after = None if following.startswith("--") else following
                key = option.lstrip("-").removesuffix("+").removesuffix(".class_path")
                flags.append(Flag("config" if key == "c" else plain(key), option, value if equals else after))
        return flags

    def options(self, verb: str | None = None) -> list[str]:
        """Return the keys that a sub-command takes. Default: the chosen one."""
        parser = self.verbs.get(verb or self.verb or "", self.parser)
        return [action.dest for action in _actions_of(parser) if action.option_strings and "help" not in action.dest]

    def without_verb(self, key: str) -> str:
        """Return a key without the sub-command it may begin with."""
        verb, _, rest = key.partition(".")
        return rest if verb in self.verbs and rest else key

    def skipped(self, key: str) -> set[str]:
        """Return the arguments of the class at `key` that the program fills in by itself."""
        parser = self.verbs.get(self.verb or "", self.parser)
        action = next((action for action in _actions_of(parser) if action.dest == self.without_verb(key)), None)
        return {name for name in getattr(action, "sub_add_kwargs", {}).get("skip", ()) if isinstance(name, str)}

    def location(self, key: str, value: str | None = None) -> Location:
        """Return where `key` was given, or the nearest key above it; `value`, as text, selects one of several."""
        at = self.without_verb(key)
        found = self._location_of(at, value)
        while not found.text and "." in at:
            at = at.rpartition(".")[0]
            found = self._location_of(at, None)
        return found

    def given(self, key: str, value: str | None) -> Location:
        """Return where `key` itself was given; in lists, the item that has `value`, as text."""
        flags = [flag for flag in self.flags if flag.key == plain(key)]
        found = self._find(key, value)
        same = found is not None and _same(str(found[1]), value)
        in_list = any(part.isdigit() for part in key.split("."))
        if flags and value is not None and (not same or any(_same(flag.value, value) for flag in flags)):
            return Location(" (on the command line)")
        if found and (same or not in_list):
            return Location(f" ({found[0]}{', and on the command line' if flags else ''})", in_file=True)
        return self._location_of(key, None) if flags or not found else Location("")

    def object_location(self, key: str, class_path: str) -> Location:
        """Return where an object of a class was given, or the list that contains it."""
        top, _, index = key.rpartition(".")
        if not index.isdigit():
            return self.class_location(key, class_path)
        files = [_named(below, class_path) for below in self.sources.each_below(top)]
        exact = [place for rest, place in files[0] if rest in (index, f"{index}.class_path")] if len(files) == 1 else []
        places = exact or [place for named in files for _, place in named]
        alone = len(places) == 1 and not self._typed(key, class_path)
        return Location(f" ({places[0]})", in_file=True) if alone else self.location(top)

    def class_location(self, key: str, class_path: str) -> Location:
        """Return where a class is named at `key`, or in the list at `key`."""
        named = _named(self.sources.below(self.without_verb(key)), class_path)
        if self._typed(key, class_path) and (not named or class_path not in str(self.value(f"{key}.class_path"))):
            return Location(" (on the command line)")
        return Location(f" ({named[0][1]})", in_file=True) if named else self.location(key)

    def _typed(self, key: str, class_path: str) -> bool:
        return any(
            flag.key == plain(key) and flag.value in (class_path, class_path.rpartition(".")[2]) for flag in self.flags
        )

    def value(self, key: str) -> Any:
        """Return the value of a key in the files; in lists of objects, that of the first item that has it."""
        found = self._find(self.without_verb(key), None)
        return found[1] if found else None

    def written(self, key: str, value: str) -> str:
        """Return a value as it is written in its file: ``yes`` for True."""
        found = self._find(self.without_verb(key), value)
        return self.sources.written.get(found[0], value) if found and str(found[1]) == value else value

    def nearest_key(self, key: str) -> str:
        """Return the known key nearest to `key`, or an empty string."""
        known = self.options()
        first, _, rest = key.partition(".")
        leaf = key.rpartition(".")[2]
        same_leaf = [one for one in known if one.rpartition(".")[2] == leaf]
        if same_leaf:
            return closest(key, same_leaf, same_leaf[0])
        groups = {one.partition(".")[0] for one in known}
        if first in groups:
            near = closest(rest, [one.partition(".")[2] for one in known if one.startswith(f"{first}.")])
            return f"{first}.{near}" if near else ""
        group = closest(first, groups)
        if group:
            return f"{group}.{rest}" if rest else group
        leaves = {one.rpartition(".")[2]: one for one in known}
        return leaves.get(closest(leaf, leaves), "")

    def _location_of(self, key: str, value: str | None) -> Location:
        flags = [flag for flag in self.flags if flag.key == plain(key)]
        typed = value is not None and any(flag.value == value for flag in flags)
        found = None if typed else self._find(key, value)
        if found and not (flags and value is not None and value not in str(found[1])):
            return Location(f" ({found[0]})", in_file=True)
        if flags:
            return Location(" (on the command line)")
        variable = self._variable(key)
        return Location(f" (in the environment variable {variable})" if variable else "")

    def _find(self, key: str, value: str | None) -> tuple[Place, Any] | None:
        """Return place and value of a key; in lists of objects, those of the first item that has it, or has `value`."""
        exact = self.sources.place(key)
        if exact:
            return exact, self.sources.value(key)
        above, rest = key, ""
        while above:
            above, _, last = above.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
            below = self.sources.below(above) if above else {}
            same = [found for name, found in below.items() if plain(name) == plain(rest)]
            if same:
                return next((found for found in same if str(found[1]) == value), same[0])
            part = self._part(above)
            place = part.place(rest)
            if place:
                return place, part.value(rest)
        return None

    def _part(self, key: str) -> Sources:
        """Return the content of the file that is the value of a key."""
        part, place = Sources(), self.sources.place(key)
        given = next((flag.value for flag in self.flags if flag.key == key and key), self.sources.value(key))
        if isinstance(given, str) and given.endswith((".yaml", ".yml", ".json")):
            beside = os.path.join(os.path.dirname(place.name), given) if place else given
            with suppress(ConfigError):  # the parser reports it
                part.read(text_of(beside), beside)
        return part

    def _variable(self, key: str) -> str | None:
        if not getattr(self.parser, "default_env", False):
            return None
        end = "__".join(plain(key).upper().split("."))
        return next((name for name in os.environ if name.endswith((f"__{end}", f"_{end}")) or name == end), None)


def _named(below: Mapping[str, tuple[Place, Any]], class_path: str) -> list[tuple[str, Place]]:
    """Return where a section of a file names a class: the rest of the key, and the place."""
    return [
        (rest, place)
        for rest, (place, value) in below.items()
        if isinstance(value, str) and value.rpartition(".")[2] == class_path.rpartition(".")[2]
        if rest.rpartition(".")[2] == "class_path" or rest.rpartition(".")[2].isdigit()
    ]


def _same(one: str | None, other: str | None) -> bool:
    """Whether two texts are the same value: `false` and `False` are."""
    return one is not None and other is not None and one.casefold() == other.casefold()


def _actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001  # argparse has no public way; this one has existed since 2009


def _verbs_of(parser: argparse.ArgumentParser) -> Mapping[str, Any]:
    found = (action.choices for action in _actions_of(parser) if isinstance(action.choices, dict))
    return next(found, None) or {}
