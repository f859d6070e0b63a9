"""Hyperparameters under the command line: the configuration is saved, and rebuilt from."""

from __future__ import annotations

import copy
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from lightlib.config.build import construct
from lightlib.config.compatible import CompatibleParser
from lightlib.core.values.hparams import given_hyperparameters

BY_COMMAND_LINE = "lightlib.cli.instantiate_module"  # marks such hyperparameters in a checkpoint
_PLAIN = (bool, int, float, str)


class RecordingInstantiator:
    """An instantiator: while an object is built, `save_hyperparameters` keeps its configuration.

    So a checkpoint holds class paths and plain values, also where `__init__` gets objects that were built for it.
    In another process, where the objects arrive built, it records nothing: it does not send the command line there.

    Args:
        configured: Returns the configuration of the object.
        key: ``"model"`` or ``"data"``, its place in the configuration.
    """

    def __init__(self, configured: Callable[[], Mapping[str, Any]], key: str) -> None:
        self._configured, self._key = configured, key

    def __call__(self, class_type: type, *args: Any, applied_instantiation_links: Any = None, **kwargs: Any) -> Any:
        configured = copy.deepcopy(dict(self._configured()))
        if "class_path" in configured:
            rest = {**(configured.get("init_args") or {}), **(configured.get("dict_kwargs") or {})}
            configured = {"_class_path": configured["class_path"], **rest}
        for name, value in (applied_instantiation_links or {}).items():
            if name.startswith(f"{self._key}."):
                _set(configured, name.removeprefix(f"{self._key}.").removeprefix("init_args.").split("."), value)
        if not _is_built_from(configured, class_type, kwargs):  # a part of it, of the same kind
            return construct(class_type, *args, **kwargs)
        with given_hyperparameters(class_type, {**configured, "_instantiator": BY_COMMAND_LINE}):
            return construct(class_type, *args, **kwargs)

    def __deepcopy__(self, memo: Any) -> RecordingInstantiator:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return _plain_instantiator, ()


def _plain_instantiator() -> Callable[..., Any]:
    """Return the instantiator in another process."""
    return _build


def _build(class_type: type, *args: Any, applied_instantiation_links: Any = None, **kwargs: Any) -> Any:
    del applied_instantiation_links  # only recorded
    return construct(class_type, *args, **kwargs)


def _is_built_from(configured: Mapping[str, Any], class_type: type, arguments: Mapping[str, Any]) -> bool:
    path = configured.get("_class_path", "")
    chosen = _named(path) if "." in path else class_type
    if isinstance(chosen, type) and chosen is not class_type:
        return False
    plain = {key: value for key, value in configured.items() if isinstance(value, _PLAIN)}
    compared = {key: arguments[key] for key in plain if isinstance(arguments.get(key), _PLAIN)}
    return all(value == plain[key] for key, value in compared.items())


def _named(path: str) -> Any:
    """Return the class of a class path, which may be within another class; None if it is not there."""
    try:
        return pkgutil.resolve_name(path)
    except AttributeError:
        return None


def _set(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def instantiate_module(class_type: type, config: Mapping[str, Any]) -> Any:
    """Build a module or data module, with its components, from the hyperparameters that were saved under it.

    It imports what the configuration names: only for one that is trusted as code is.

    Args:
        class_type: The class, or a base of it.
        config: The hyperparameters of a checkpoint.

    Example:
        >>> from lightlib.testing import BoringModule
        >>> type(instantiate_module(BoringModule, {})).__name__
        'BoringModule'
    """
    parser = CompatibleParser(exit_on_error=False)
    plain = {name: value for name, value in config.items() if name not in ("_class_path", "_instantiator")}
    chosen = "_class_path" in config
    if chosen:
        parser.add_subclass_arguments(class_type, "module", fail_untyped=False)
        plain = {"class_path": config["_class_path"], "dict_kwargs": plain}
    else:
        parser.add_class_arguments(class_type, "module", fail_untyped=False)
    parser.add_instantiator(RecordingInstantiator(lambda: plain, "module"), class_type, subclasses=chosen)
    namespace = parser.parse_object({"module": plain})
    return parser.instantiate(namespace).module
