"""Read configuration files: load the YAML, and remember in which file and line each key stands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lightlib.config.yaml.document import ConfigError, Document, Dumper, Place
from lightlib.errors import closest

__all__ = ["ConfigError", "Document", "Overridden", "Place", "Sources", "dump", "load", "loader", "places", "text_of"]


def load(text: str, name: str | None = None, *, mapping: bool = False) -> Any:
    """Read one YAML document.

    Args:
        text: The document. Scalars are read as Lightning's CLI reads them: ``1e-3`` is a float, a date a string.
        name: The file's name, for errors. Default: ``"the given text"``.
        mapping: Refuse anything but a mapping at the top. Default False.

    Raises:
        ConfigError: The YAML is broken, has a tag that builds an object, a key twice, several documents, or is
            nested or grows by aliases beyond the limits of `yaml_document`.

    Example:
        >>> load("trainer: {max_epochs: 3, callbacks: [], started: 2026-01-01}")
        {'trainer': {'max_epochs': 3, 'callbacks': [], 'started': '2026-01-01'}}
    """
    return Document(text, name, mapping=mapping).value()


def places(text: str, name: str | None = None) -> dict[str, Place]:
    r"""Return where each key stands, by its dotted path; an item of a list has its index.

    Example:
        >>> {key: place.line for key, place in places("trainer:\n  callbacks:\n  - EarlyStopping\n").items()}
        {'trainer': 1, 'trainer.callbacks': 2, 'trainer.callbacks.0': 3}
    """
    return Document(text, name).places()


def loader(text: str) -> Any:
    """Load a text for jsonargparse, mostly one value of the command line.

    A text that YAML would read as keys without values (``{a, b}``, ``word:``) stays the text, as with its own loader.
    """
    value = load(text)
    if isinstance(value, dict) and value and all(one is None for one in value.values()):
        words = set(text.strip(" {}").replace(" ", "").split(","))
        if words == set(value) or (len(value) == 1 and text.strip() == f"{next(iter(value))}:"):
            return text
    return value


def dump(value: Any, *, flow: bool = False) -> str:
    """Return plain values as text that :func:`load` reads as the same values.

    Args:
        value: What to write.
        flow: On one line, for a flag. Default False.

    Example:
        >>> dump({"lr": "1e-3", "at": "2026-01-01", "names": ["a"]}, flow=True)
        "{lr: '1e-3', at: 2026-01-01, names: [a]}"
    """
    options: dict[str, Any] = {"sort_keys": False, "width": sys.maxsize}
    text: str = yaml.dump(value, Dumper=Dumper, default_flow_style=flow, **options)
    return text.removesuffix("\n") if flow else text


def text_of(path: str | os.PathLike[str]) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: There is no such file, it is a folder, cannot be read, or is not UTF-8.
    """
    file = Path(path)
    if file.is_dir():
        some = ", ".join(map(str, _files_in(file)[:10]))
        raise ConfigError(
            f"The configuration {os.fspath(path)!r} is a folder.",
            expected="a YAML file.",
            fix=f"name a file in it: {some or 'there is none that ends in .yaml'}.",
        )
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        beside = {one.stem: str(one) for one in _files_in(file.parent)}
        near = beside.get(closest(file.stem, beside))
        raise ConfigError(
            f"The configuration {os.fspath(path)!r} does not exist.{f' Did you mean {near!r}?' if near else ''}",
            expected=f"the path of a file, seen from {os.getcwd()}.",
            fix=f"--config {near}"
            if near
            else f"one of {', '.join(list(beside.values())[:10])}"
            if beside
            else "correct the path.",
        ) from None
    except OSError as error:
        raise ConfigError(f"The configuration {os.fspath(path)!r} cannot be read: {error.strerror}.") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{os.fspath(path)}, line {line}: the byte {data[error.start : error.start + 1]!r} is not UTF-8.",
            expected="text in UTF-8.",
            fix="save the file as UTF-8 in your editor.",
        ) from None


def _files_in(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.suffix in (".yaml", ".yml", ".json"))
    except OSError:
        return []


class Overridden(NamedTuple):
    """A key that two files set: the overridden place and value, then the ones that count."""

    key: str
    first: Place
    first_value: Any
    place: Place
    value: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.value!r} ({self.place}) instead of {self.first_value!r} ({self.first})"


class Sources:
    r"""The configuration files read so far, in order, with the places of their keys.

    Args:
        verbs: The sub-commands. A file may have its keys below one (`fit:`) or without; both are the same key.

    Example:
        >>> sources = Sources()
        >>> config = sources.read("trainer:\n  max_epochs: 3\n", "run.yaml")
        >>> config = sources.read("trainer:\n  max_epochs: 5\n", "more.yaml")
        >>> sources.where("fit.trainer.max_epochs")
        'more.yaml, line 2'
        >>> [(one.key, str(one.first), one.first_value, one.value) for one in sources.overridden()]
        [('trainer.max_epochs', 'run.yaml, line 2', 3, 5)]
    """

    def __init__(self, verbs: Iterable[str] = ("fit", "validate", "test", "predict")) -> None:
        self.verbs = tuple(verbs)
        self.folder = os.getcwd()  # where the command was started: a file is read in its own folder
        self._read: list[tuple[Any, dict[str, Place]]] = []
        self._defaults: list[str] = []  # the names of the first ones
        self._latest = 0
        self.names: dict[str, str] = {}  # of texts that the program itself passes to the parser
        self._ahead: dict[str, Document] = {}  # by absolute path
        self.written: dict[Place, str] = {}  # how the value of the key at a place is written

    def read(self, text: str, name: str | os.PathLike[str] | None = None, *, default: bool = False) -> dict[str, Any]:
        """Load the text of a configuration, and remember the places of its keys.

        Args:
            text: The content of the file.
            name: The file's name, as the user wrote it. Default: ``"--config"``, for text given in place of a file.
            default: Whether it is one of `default_config_files`: later files win, and it may be read again.

        Raises:
            ConfigError: See :func:`load`; or it is not a mapping.
        """
        return self.add(self.document(text, name), default=default)

    def document(self, text: str, name: str | os.PathLike[str] | None = None) -> Document:
        """Return the text of a configuration as a document, which must be a mapping."""
        return Document(text, os.fspath(name) if name else self.names.get(text, "--config"), mapping=True)

    def look_ahead(self, path: str) -> Document:
        """Read a configuration file before the parser does; :meth:`take` returns the same document."""
        key = os.path.abspath(path)
        if key not in self._ahead:
            self._ahead[key] = self.document(text_of(path), path)
        return self._ahead[key]

    def take(self, path: str) -> Document:
        """Return a configuration file as a document; it is read once."""
        document = self.look_ahead(path)
        del self._ahead[os.path.abspath(path)]
        return document

    def add(self, document: Document, *, default: bool = False) -> dict[str, Any]:
        """Return the values of a document, and remember the places of its keys; the arguments are those of `read`."""
        value: dict[str, Any] = document.value()
        found = value, document.places()
        self.written |= document.written()
        if default and document.name in self._defaults:
            self._latest = self._defaults.index(document.name)
            self._read[self._latest] = found
        else:
            self._latest = len(self._defaults if default else self._read)
            self._read.insert(self._latest, found)
            self._defaults += [document.name] if default else []
        return value

    def name_texts(self, names: Mapping[str, str]) -> None:
        """Name texts that the program itself passes to the parser, for errors."""
        self.names = dict(names)

    def has_read(self, path: str) -> bool:
        """Whether the file at `path` is one of those that were read."""
        names = {place.name for _, found in self._read for place in found.values()}
        return any(os.path.realpath(name) == os.path.realpath(path) for name in names)

    def place(self, key: str) -> Place | None:
        """Return the place of a key in the last file that has it; `key` may begin with a sub-command."""
        found, name = self._last(key)[1:]
        return found.get(name)

    def where(self, key: str) -> str | None:
        """Return the place of a key as text, ``"run.yaml, line 7"``, or None when no file has it."""
        place = self.place(key)
        return None if place is None else str(place)

    def value(self, key: str) -> Any:
        """Return the value of a key in the last file that has it, or None."""
        config, _, name = self._last(key)
        return _at(config, name) if name else None

    def below(self, key: str) -> dict[str, tuple[Place, Any]]:
        """Map the keys below `key`, in the last file that has it, to their places and values."""
        return next(self.each_below(key), {})

    def each_below(self, key: str) -> Iterator[dict[str, tuple[Place, Any]]]:
        """Yield the result of `below` for each file that has `key`, the last first."""
        for config, found, name in self._having(key):
            yield {
                one.removeprefix(f"{name}."): (place, _at(config, one))
                for one, place in found.items()
                if one.startswith(f"{name}.")
            }

    def _last(self, key: str) -> tuple[Any, dict[str, Place], str]:
        return next(self._having(key), (None, {}, ""))

    def _having(self, key: str) -> Iterator[tuple[Any, dict[str, Place], str]]:
        for config, found in reversed(self._read):
            name = self._name_in(found, key)
            if name:
                yield config, found, name

    def place_of_name(self, text: str) -> Place | str:
        """Return where a name that is quoted in `text` stands in the file read last; its name, when it is nowhere."""
        config, found = self._read[self._latest]
        named = [place for key, place in found.items() if _quoted(_at(config, key), text)]
        keys = [place for key, place in found.items() if repr(key.rpartition(".")[2]) in text]
        return next(iter([*named, *keys]), next(iter(found.values())).name)

    def check_groups(self, groups: Iterable[str]) -> None:
        """Reject groups of arguments that are a single value or have a key like 1, in the file read last.

        A text may be the path of a file that holds the group.

        Raises:
            ConfigError: There is one.
        """
        for group in ("", *groups):
            config, found = self._read[self._latest]
            name = self._name_in(found, group) if group else ""
            value = _at(config, name) if name or not group else None
            wrong = next((key for key in value if not isinstance(key, str)), "") if isinstance(value, dict) else ""
            if not isinstance(wrong, str):
                place = found[f"{name}.{wrong}" if name else str(wrong)]
                raise ConfigError(
                    f"A key is read as {wrong!r} ({place}), which is no name.",
                    expected="the name of an argument; YAML reads yes, no, on, off and null as values.",
                    fix="correct it, or put it in quotes.",
                )
            if value is not None and not isinstance(value, (dict, str)):
                raise ConfigError(
                    f"{group!r} is {value!r:.80} ({found[name]}), but it is a group of arguments.",
                    expected="a mapping of its arguments, or the path of a YAML file that holds one.",
                    fix=f"{group.rpartition('.')[2]}: {{}}, or its arguments, indented in lines of their own.",
                )

    def overridden(self) -> list[Overridden]:
        """Return the keys that two files set to different values, in the order of the later files."""
        differing: dict[tuple[int, str], Overridden] = {}
        for index, (config, found) in enumerate(self._read):
            for setting in _settings(config):
                for key in _and_parents(setting):
                    earlier = next((one for one in reversed(self._read[:index]) if self._name_in(one[1], key)), None)
                    if earlier is None:
                        continue
                    name = self._name_in(earlier[1], key)
                    before, value = _at(earlier[0], name), _at(config, key)
                    if before != value and (key == setting or not isinstance(before, dict)):
                        differing[index, key] = Overridden(key, earlier[1][name], before, found[key], value)
                    break
        return list(differing.values())

    def _name_in(self, found: dict[str, Place], key: str) -> str:
        """Return how `key` is spelt in one file, or an empty string when it is not there."""
        return next((one for one in self._spellings(key) if one in found), "")

    def _spellings(self, key: str) -> list[str]:
        verb, _, rest = key.partition(".")
        below_verb = verb in self.verbs and rest
        keys = [key, rest] if below_verb else [key, *(f"{verb}.{key}" for verb in self.verbs)]
        return [*keys, *(f"{one}+" for one in keys)]  # what is added to a list


def _settings(config: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of all values; a list is one value, since a later one replaces it."""
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _and_parents(key: str) -> Iterator[str]:
    """Yield ``a.b.c``, ``a.b`` and ``a``."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _at(config: Any, key: str) -> Any:
    """Return the value at a dotted key; a name may itself contain dots."""
    if not key:
        return config
    if isinstance(config, list):
        index, _, rest = key.partition(".")
        return _at(config[int(index)], rest)
    name = next(name for name in config if key == str(name) or key.startswith(f"{name}."))
    return _at(config[name], key[len(str(name)) + 1 :])


def _quoted(value: Any, text: str) -> bool:
    return isinstance(value, str) and repr(value) in text
