"""The YAML loader that jsonargparse calls: a `parser_mode` of our own, with our class paths."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jsonargparse

from lightlib.config.yaml.file import ConfigError, loader
from lightlib.translations import translated

MODE = "lightlib"
_NOT_TEXT = ("false", "n", "no", "null", "off", "on", "true", "y", "yes")  # words that YAML may read as another value
_parsed: ContextVar[Mapping[str, Any]] = ContextVar("parsed", default={})  # noqa: B039  it is never changed


def with_unix_lines(text: str) -> str:
    """Return a text as Python reads it from a file, without a byte order mark."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


@contextmanager
def handed_over(values: Mapping[str, Any]) -> Iterator[None]:
    """Let the loader return the values of these texts, which have been parsed already."""
    token = _parsed.set({**_parsed.get(), **values})
    try:
        yield
    finally:
        _parsed.reset(token)


def _load(text: str) -> Any:
    """Load a text for jsonargparse: a value with our class paths, or a configuration that has been parsed already."""
    if text.isalpha() and text.lower() not in _NOT_TEXT:  # most texts are one word
        return text
    values = _parsed.get().get(with_unix_lines(text))
    return translated(loader(text)) if values is None else copy.deepcopy(values)


jsonargparse.set_loader(MODE, _load, (ConfigError,))
