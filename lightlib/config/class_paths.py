"""Replace short names and class paths of Lightning by our class paths, in words and in files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from lightlib.config import short_names
from lightlib.config.placeholders import with_late_ints
from lightlib.config.yaml.file import ConfigError, dump, loader
from lightlib.translations import translated

_NO_NAMES = ("null", "none", "true", "false")
# Arguments for which the Trainer itself takes names: only names of classes are replaced, and `csv` stays `csv`.
TAKEN_BY_TRAINER = {
    "trainer.accelerator": "accelerators",
    "trainer.logger": "loggers",
    "trainer.profiler": "profilers",
    "trainer.strategy": "strategies",
}


def arguments_with_class_paths(arguments: Iterable[str], named: Mapping[str, str]) -> Iterator[str]:
    """Yield the words of a command line, with class paths as in :func:`with_class_paths`."""
    group: str | None = None
    by_name = is_plugin = False
    for word in arguments:
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        if word.startswith("-"):
            name = option.lstrip("-").removesuffix("+")
            key = name.removesuffix(".class_path").removesuffix(".help")
            group, by_name = named.get(key), key != name or not _taken_by_trainer(key)
            is_plugin = key.endswith("trainer.plugins")
        if not word.startswith("-") or equals:
            value = _full(_full_plugin(value) if is_plugin else value, group, by_name)
            group, is_plugin = None, False
        yield option + equals + value


def _full_plugin(word: str) -> str:
    """Return a word for `trainer.plugins` with full class paths."""
    if word[:1] not in ("[", "{"):
        return short_names.plugin_path(word)
    with suppress(ConfigError):  # jsonargparse reports the error
        value = loader(word)
        return dump([_plugin(plugin) for plugin in value] if isinstance(value, list) else _plugin(value), flow=True)
    return word


def _full(name: str, group: str | None, by_name: bool = True) -> str:
    """Return the class path for a name of an object of `group`; `by_name` as in `_chosen`."""
    if group is not None and name[:1] in ("[", "{"):
        with suppress(ConfigError):  # jsonargparse reports the error
            chosen = _chosen(translated(loader(name)), group, by_name)
            return dump(chosen, flow=True)
    is_name = all(part.isidentifier() for part in name.split(".")) and name.lower() not in _NO_NAMES
    if group is None or not is_name or not (by_name or "." in name or name[0].isupper()):
        path: str = translated(name)
        return path
    return short_names.class_path(group, name)


def with_class_paths(config: Any, named: Mapping[str, str], prefix: str = "") -> Any:
    """Return a configuration with short names and class paths of Lightning replaced by our class paths.

    `named` has the group of the registry for each key that takes a class.
    """
    config = config if prefix else translated(config)
    if not isinstance(config, dict):
        return config
    replaced = {}
    for key, value in config.items():
        at = f"{prefix}{key}"
        if at in named:
            replaced[key] = _chosen(value, named[at], not _taken_by_trainer(at))
        elif at.endswith("trainer.plugins"):
            replaced[key] = [_plugin(plugin) for plugin in value] if isinstance(value, list) else _plugin(value)
        elif any(key_of_class.startswith(f"{at}.") for key_of_class in named):
            replaced[key] = with_class_paths(value, named, f"{at}.")
        else:
            replaced[key] = value
    return replaced


def _plugin(value: Any) -> Any:
    """Return a plugin with a full class path: it may be of several groups, and compat has classes of the same names."""
    if isinstance(value, str):
        return short_names.plugin_path(value)
    if isinstance(value, dict) and isinstance(value.get("class_path"), str):
        return {**value, "class_path": short_names.plugin_path(value["class_path"])}
    return value


def _taken_by_trainer(key: str) -> bool:
    return key.endswith(tuple(TAKEN_BY_TRAINER))


def _chosen(value: Any, group: str, by_name: bool = True) -> Any:
    """Return a value with full class paths; `by_name`: also for ``csv``, not only for names of classes."""
    if isinstance(value, str):
        return _full(value, group, by_name) if by_name or value[:1].isupper() else value
    if isinstance(value, list):
        return [_chosen(element, group, by_name) for element in value]
    if isinstance(value, dict):
        short_names.check_shape(group, value)
        if group == "schedulers":
            value = with_late_ints(value)
    if isinstance(value, dict) and isinstance(value.get("class_path"), str):
        return {**value, "class_path": _full(value["class_path"], group)}
    return value
