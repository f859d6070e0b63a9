"""Read configuration files: load the YAML, and remember in which file and line each key stands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from lightlib.config.yaml.document import ConfigError, Document, Dumper, Entry
from lightlib.errors import closest

__all__ = ["ConfigError", "Document", "Sources", "dump", "load", "loader", "text_of"]


def load(text: str, name: str | None = None, *, mapping: bool = False) -> Any:
    """Read one YAML document; with `mapping`, refuse anything but a mapping at the top.

    Scalars are read as Lightning's CLI reads them: ``1e-3`` is a float, a date a string.

    Raises:
        ConfigError: The YAML is broken, has a tag that builds an object, a key twice, several documents, or is
            nested or grows by aliases beyond the limits of `yaml_document`.
    """
    return Document(text, name, mapping=mapping).value


def loader(text: str) -> Any:
    """Load a text for jsonargparse, mostly one value of the command line.

    A text that YAML would read as keys without values (``{a, b}``, ``word:``) stays the text, as with its own loader.
    """
    value = load(text)
    if isinstance(value, dict) and value and all(entry is None for entry in value.values()):
        words = set(text.strip(" {}").replace(" ", "").split(","))
        if words == set(value) or (len(value) == 1 and text.strip() == f"{next(iter(value))}:"):
            return text
    return value


def dump(value: Any, *, flow: bool = False) -> str:
    """Return plain values as text that :func:`load` reads as the same values; with `flow`, on one line."""
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
        beside = {file_path.stem: str(file_path) for file_path in _files_in(file.parent)}
        near = beside.get(closest(file.stem, beside))
        raise ConfigError(
            f"The configuration {os.fspath(path)!r} does not exist.{f' Did you mean {near!r}?' if near else ''}",
            expected=f"the path of a file, seen from {os.getcwd()}.",
            fix=f"--config {near}" if near else "correct the path.",
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
        return sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml", ".json"))
    except OSError:
        return []


class Sources:
    """The configuration files read so far, in order, with the places of their keys.

    Args:
        verbs: The sub-commands. A file may have its keys below one (`fit:`) or without; both are the same key.
    """

    def __init__(self, verbs: Iterable[str] = ("fit", "validate", "test", "predict")) -> None:
        self.verbs = tuple(verbs)
        self._names: dict[str, str] = {}  # of texts that the program itself passes to the parser
        self._defaults: dict[str, Document] = {}
        self._files: list[Document] = []
        self._latest = Document("")
        self._ahead: dict[str, Document] = {}  # by absolute path

    @property
    def documents(self) -> list[Document]:
        """The files in the order in which they count; later ones win."""
        return [*self._defaults.values(), *self._files]

    def document(self, text: str, name: str | os.PathLike[str] | None = None) -> Document:
        """Return the text of a configuration as a document, which must be a mapping."""
        return Document(text, os.fspath(name) if name else self._names.get(text, "--config"), mapping=True)

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
        """Return the values of a document, and remember the places of its keys.

        One of `default_config_files` may be read again, and later files win over it.
        """
        self._latest = document
        if default:
            self._defaults[document.name] = document
        else:
            self._files.append(document)
        value: dict[str, Any] = document.value
        return value

    def name_texts(self, names: Mapping[str, str]) -> None:
        """Name texts that the program itself passes to the parser, for errors."""
        self._names = dict(names)

    def has_read(self, path: str) -> bool:
        """Whether the file at `path` is one of those that were read."""
        return any(os.path.realpath(document.name) == os.path.realpath(path) for document in self.documents)

    def where(self, key: str) -> str | None:
        """Return the place of a key in the last file that has it, ``"run.yaml, line 7"``, or None.

        The key may begin with a sub-command.
        """
        entry = self._entry(key, self.documents)
        return None if entry is None else entry.place

    def place_of_name(self, text: str) -> str:
        """Return where a name that is quoted in `text` stands in the file read last; its name, when it is nowhere."""
        entries = self._latest.entries
        named = [
            entry.place for entry in entries.values() if isinstance(entry.value, str) and repr(entry.value) in text
        ]
        keys = [entry.place for key, entry in entries.items() if repr(key.rpartition(".")[2]) in text]
        return next(iter([*named, *keys]), self._latest.name)

    def check_groups(self, groups: Iterable[str]) -> None:
        """Reject groups of arguments that are a single value or have a key like 1, in the file read last.

        A text may be the path of a file that holds the group.
        """
        entries = self._latest.entries
        names = {group: self._name_in(self._latest, group) for group in groups}
        for group, name in {"": "", **names}.items():
            value = entries[name].value if name else None if group else self._latest.value
            wrong = [key for key in value if not isinstance(key, str)] if isinstance(value, dict) else []
            if wrong:
                place = entries[f"{name}.{wrong[0]}" if name else str(wrong[0])].place
                raise ConfigError(
                    f"A key is read as {wrong[0]!r} ({place}), which is no name.",
                    expected="the name of an argument; YAML reads yes, no, on, off and null as values.",
                    fix="correct it, or put it in quotes.",
                )
            if value is not None and not isinstance(value, (dict, str)):
                raise ConfigError(
                    f"{group!r} is {value!r:.80} ({entries[name].place}), but it is a group of arguments.",
                    expected="a mapping of its arguments, or the path of a YAML file that holds one.",
                    fix=f"{group.rpartition('.')[2]}: {{}}, or its arguments, indented in lines of their own.",
                )

    def overridden(self) -> list[str]:
        """Return the keys that two files set to different values, with both, in the order of the later files."""
        differing: list[str] = []
        for index, document in enumerate(self.documents):
            shown_keys: list[str] = []
            for key, now in document.entries.items():
                before = self._entry(key, self.documents[:index])
                both_groups = before is not None and isinstance(before.value, dict) and isinstance(now.value, dict)
                if before is None or both_groups or before.value == now.value or key.startswith(tuple(shown_keys)):
                    continue
                shown_keys.append(f"{key}.")
                differing.append(f"{key}: {now.value!r} ({now.place}) instead of {before.value!r} ({before.place})")
        return differing

    def _entry(self, key: str, documents: list[Document]) -> Entry | None:
        """Return a key of the last of several files that has it."""
        matches = ((document, self._name_in(document, key)) for document in reversed(documents))
        return next((document.entries[name] for document, name in matches if name), None)

    def _name_in(self, document: Document, key: str) -> str:
        """Return how `key` is spelt in one file, or an empty string when it is not there."""
        verb, _, rest = key.partition(".")
        below_verb = verb in self.verbs and rest
        keys = [key, rest] if below_verb else [key, *(f"{verb}.{key}" for verb in self.verbs)]
        added = [f"{base_key}+" for base_key in keys]  # to a list
        return next((candidate for candidate in [*keys, *added] if candidate in document.entries), "")
