"""Secrets of an experiment file: masked in errors, in reprs and in the stored copy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from lightlib.report import LOGIN, MASK, is_secret, without_passwords

_NAMES_OF = {
    "environment.registry_auth": ("password", "auth", "identitytoken", "registrytoken"),
    "checkpoint_storage": ("access_key", "secret_key", "connection_string", "credential"),
}
_BELOW = ("data.secrets",)
_VARIABLES = "environment.environment_variables"
_PAIR = re.compile(r"(?P<name>[^=]+)=(?P<value>.*)", re.DOTALL)
_SOURCE_LINE = re.compile(r"^(?P<head>  \d+ \| )(?P<text>.*)$", re.MULTILINE)
_JOINED = re.compile(r"(?P<above>(?:[\w-]+\.)*)(?P<name>[\w-]+)(?P<between>[:\s]).*", re.DOTALL)
_KEYS_ABOVE = re.compile(r"^(?P<indent>\s*)(?:- )?['\"]?(?P<name>[\w-]+)['\"]?\s*:")


def variable_of(key: str) -> str:
    """Return the environment variable that holds the secret of a key, as for `lightlib fit`.

    Example:
        >>> variable_of("checkpoint_storage.secret_key")
        'LIGHTLIB_SECRET_SECRET_KEY'
    """
    return "LIGHTLIB_SECRET_" + re.sub("[^A-Z0-9]", "_", key.rpartition(".")[2].upper())


def masked_at(key: str, value: Any) -> Any:
    """Return the value of a key with ``***`` for its secrets.

    Secrets are everything below ``data.secrets``, passwords of ``environment.registry_auth``, keys of the checkpoint
    storage, environment variables and texts whose name looks like a secret (`lightlib.report.is_secret`), and passwords
    in URLs.

    Args:
        key: Its dotted key; empty for a full experiment.
        value: Plain values.

    Example:
        >>> masked_at("", {"data": {"secrets": {"pin": 1234}, "url": "s3://me:abc@host"}})
        {'data': {'secrets': {'pin': '***'}, 'url': 's3://me:***@host'}}
    """
    return _changed(key, value, _mask, _is_hidden_above(key, value))


def from_environment(value: Any) -> Any:
    """Return an experiment with the values of ``LIGHTLIB_SECRET_…`` variables for those of its secrets that are masked.

    Example:
        >>> from_environment({"checkpoint_storage": {"secret_key": "***"}})
        {'checkpoint_storage': {'secret_key': '***'}}
    """
    return _changed("", value, _unmask, False)


def still_masked(value: Any) -> tuple[str, ...]:
    """Return the dotted keys of the secrets that are masked, in their order; environment variables by their names.

    Example:
        >>> still_masked({"data": {"secrets": {"pin": "***"}}})
        ('data.secrets.pin',)
    """
    masked = ((key, leaf) for key, leaf in _leaves("", value) if isinstance(leaf, str) and is_masked(leaf))
    return tuple(dict.fromkeys(_named(*each) for each in masked))


def _named(key: str, value: str) -> str:
    pair = _pair(key, value)
    return f"{key.rpartition('.')[0]}.{pair['name']}" if pair else key


def _pair(key: str, value: str) -> re.Match[str] | None:
    """Return the match of an environment variable with its name and its value."""
    return _PAIR.fullmatch(value) if key.startswith(_VARIABLES) else None


def shown_key(key: str) -> str:
    """Return a dotted key as errors show it: without the secret in ``password:abc``, which lacks a space.

    Example:
        >>> shown_key("environment.registry_auth.password:abc")
        'environment.registry_auth.password:***'
    """
    match = _JOINED.fullmatch(key)
    if match and (is_secret(match["name"], "") or _is_secret_name(match["name"])):
        return f"{match['above']}{match['name']}{match['between']}{MASK}"
    return key


def is_masked(value: str) -> bool:
    """Whether a text is a masked secret, holds a URL with a masked password, or is ``NAME=***``."""
    login = LOGIN.search(value)
    return value == MASK or value.endswith(f"={MASK}") or (login is not None and login[2] == MASK)


def hide_lines(message: str, text: str) -> str:
    """Return a YAML error without the values of secrets in the source lines that it shows.

    Args:
        message: The error, which shows lines as ``  7 | key: value``.
        text: The file.
    """
    lines = text.split("\n")

    tags: list[str] = []

    def hidden(match: re.Match[str]) -> str:
        number = int(match["head"].split("|")[0])
        key = _KEYS_ABOVE.match(match["text"])
        names = [*_names_above(lines, number - 1), *re.findall(r"[\w-]+", lines[number - 1])]
        if not any(is_secret(name, "") or _is_secret_name(name) for name in names):
            return without_passwords(match[0])
        tags.extend(re.findall(r"!(\S+)", lines[number - 1]))
        return f"{match['head']}{key[0] if key else ''} {MASK}"

    hidden_text = without_passwords(_SOURCE_LINE.sub(hidden, message))
    for tag in tags:
        hidden_text = hidden_text.replace(tag, MASK)
    return hidden_text


def _names_above(lines: list[str], index: int) -> Iterator[str]:
    """Yield the key in a line and those of the less indented lines above it."""
    indent = None
    for line in reversed(lines[: index + 1]):
        match = _KEYS_ABOVE.match(line)
        if match and (indent is None or len(match["indent"]) < indent):
            indent = len(match["indent"])
            yield match["name"]


def _is_secret_name(name: str) -> bool:
    return any(name in names for names in _NAMES_OF.values())


def _mask(key: str, value: Any, hidden: bool) -> Any:
    if hidden:
        return value if value in (None, "") else MASK
    if not isinstance(value, str):
        return value
    pair = _pair(key, value)
    if pair and is_secret(pair["name"], pair["value"]):
        return f"{pair['name']}={MASK}"
    return without_passwords(value)


def _unmask(key: str, value: Any, hidden: bool) -> Any:  # noqa: ARG001  one signature for both
    if not isinstance(value, str) or not is_masked(value):
        return value
    pair = _pair(key, value)
    secret = os.environ.get(variable_of(pair["name"] if pair else key))
    if secret is None:
        return value
    if pair:
        return f"{pair['name']}={secret}"
    return secret if value == MASK else value.replace(f":{MASK}@", f":{secret}@")


def _changed(key: str, value: Any, change: Callable[[str, Any, bool], Any], hidden: bool) -> Any:
    """Return a copy with each single value changed by ``change(key, value, hidden)``."""
    if isinstance(value, dict):
        return {name: _changed(*_below(key, name, child, hidden, change)) for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_changed(f"{key}.{index}", child, change, hidden) for index, child in enumerate(value)]
    return change(key, value, hidden)


def _below(key: str, name: object, value: Any, hidden: bool, change: Callable[[str, Any, bool], Any]) -> Any:
    path = f"{key}.{name}" if key else str(name)
    return path, value, change, hidden or _is_hidden(path, value)


def _is_hidden(path: str, value: Any) -> bool:
    above, _, name = path.rpartition(".")
    if name in _NAMES_OF.get(above, ()) or path in _BELOW or (path in _NAMES_OF and not isinstance(value, dict)):
        return value is not None
    return is_secret(name, value) and isinstance(value, (str, dict, list, tuple))


def _is_hidden_above(key: str, value: Any) -> bool:
    """Whether a key, or a section above it, is a secret."""
    parts = key.split(".") if key else []
    paths = [".".join(parts[:end]) for end in range(1, len(parts))]
    return any(_is_hidden(path, {}) for path in paths) or (key != "" and _is_hidden(key, value))


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _leaves(f"{key}.{name}" if key else str(name), child)
    elif isinstance(value, (list, tuple)):
        for index, child in enumerate(value):
            yield from _leaves(f"{key}.{index}", child)
    else:
        yield key, value
