"""Lightning's functions for the arguments of `__init__` and for files of hyperparameters."""

from __future__ import annotations

import ast
import csv
import inspect
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, cast

from lightlib import report
from lightlib.checkpoint import formats
from lightlib.checkpoint.lightning_upgrades import upgraded
from lightlib.core.values.hparams import HyperparametersMixin
from lightlib.errors import MisconfigurationException
from lightlib.loggers.hyperparameters import from_omegaconf

__all__ = [
    "CHECKPOINT_PAST_HPARAMS_KEYS",
    "collect_init_args",
    "convert",
    "load_hparams_from_tags_csv",
    "load_hparams_from_yaml",
    "merge_dicts",
    "migrate_checkpoint",
    "parse_class_init_keys",
    "pl_load",
    "save_hparams_to_tags_csv",
    "save_hparams_to_yaml",
    "save_hyperparameters",
    "update_hparams",
]

CHECKPOINT_PAST_HPARAMS_KEYS = ("hparams", "module_arguments")  # of very old checkpoints


def parse_class_init_keys(cls: type) -> tuple[str, str | None, str | None]:
    """Return the names of ``self``, ``*args`` and ``**kwargs`` in a class's ``__init__``; None where there is none.

    Example:
        >>> class Net:
        ...     def __init__(self, width, *rest, **options): ...
        >>> parse_class_init_keys(Net)
        ('self', 'rest', 'options')
    """
    parameters = list(inspect.signature(cls.__init__).parameters.values())  # type: ignore[misc]

    def first(kind: Any) -> str | None:
        return next((parameter.name for parameter in parameters if parameter.kind is kind), None)

    return parameters[0].name, first(inspect.Parameter.VAR_POSITIONAL), first(inspect.Parameter.VAR_KEYWORD)


def collect_init_args(
    frame: FrameType, path_args: list[dict[str, Any]], inside: bool = False, classes: tuple[type, ...] = ()
) -> list[dict[str, Any]]:
    """Append the arguments of each ``__init__`` on the stack to `path_args`, the innermost first, and return it.

    Args:
        frame: Where to begin.
        path_args: What was found so far.
        inside: Whether the stack is within such methods already, so that the first other frame ends the search.
        classes: Only objects of these count; default: all.
    """
    here: FrameType | None = frame
    while here is not None and here.f_back is not None:
        values = inspect.getargvalues(here).locals
        is_init = "__class__" in values and here.f_code.co_name == "__init__"
        owner = values.get(parse_class_init_keys(values["__class__"])[0]) if is_init else None
        if "__class__" in values and (not classes or isinstance(owner, classes)):
            path_args.append(_arguments(values) if is_init else {})
            inside = True
        elif inside:
            break
        here = here.f_back
    return path_args


def _arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    cls = values["__class__"]
    itself, several, options = parse_class_init_keys(cls)
    names = [name for name in inspect.signature(cls.__init__).parameters if name not in (itself, several, options)]
    return {name: values[name] for name in names} | dict(values.get(options or "", {}))


def save_hyperparameters(
    obj: HyperparametersMixin,
    *args: Any,
    ignore: Sequence[str] | str | None = None,
    frame: FrameType | None = None,
    given_hparams: dict[str, Any] | None = None,
) -> None:
    """Keep hyperparameters on an object, as its method of the same name does.

    Args:
        obj: A module or data module.
        args: Names of arguments to keep (default: all), or one dictionary.
        ignore: Names to leave out.
        frame: Of the ``__init__`` to read; default: the caller's.
        given_hparams: The hyperparameters themselves.

    Raises:
        ValueError: As the method.
    """
    if given_hparams is not None:
        obj.save_hyperparameters(given_hparams, ignore=ignore)
        return
    caller = inspect.currentframe()
    obj.save_hyperparameters(*args, ignore=ignore, frame=frame or (caller.f_back if caller else None))


def update_hparams(hparams: dict[str, Any], updates: Mapping[str, Any]) -> None:
    """Put new values into hyperparameters; nested dicts are merged.

    Example:
        >>> hparams = {"optimizer": {"lr": 0.1, "name": "sgd"}}
        >>> update_hparams(hparams, {"optimizer": {"lr": 0.2}, "width": 3})
        >>> hparams
        {'optimizer': {'lr': 0.2, 'name': 'sgd'}, 'width': 3}
    """
    for name, value in updates.items():
        if isinstance(value, dict) and name in hparams:
            update_hparams(hparams[name], value)
        else:
            hparams[name] = value


def convert(val: str) -> int | float | bool | str:
    """Return the Python value that a text stands for, or the text.

    Example:
        >>> convert("0.1"), convert("True"), convert("adam")
        (0.1, True, 'adam')
    """
    try:
        value: int | float | bool | str = ast.literal_eval(val)
    except (ValueError, SyntaxError):
        return val
    return value


def load_hparams_from_tags_csv(tags_csv: str | Path) -> dict[str, Any]:
    """Return the hyperparameters of a CSV file of names and values; empty, with a warning, if it is missing."""
    if not Path(tags_csv).exists():
        report.warn(f"There are no hyperparameters at {tags_csv}.")
        return {}
    with Path(tags_csv).open(newline="", encoding="utf-8") as file:
        return {name: convert(value) for name, value in list(csv.reader(file))[1:]}


def save_hparams_to_tags_csv(tags_csv: str | Path, hparams: dict[str, Any] | Namespace) -> None:
    """Write hyperparameters as a CSV file of names and values.

    Raises:
        RuntimeError: The folder does not exist.
    """
    values = vars(hparams) if isinstance(hparams, Namespace) else hparams
    with _opened(tags_csv) as file:
        csv.writer(file).writerows([("key", "value"), *values.items()])


def load_hparams_from_yaml(config_yaml: str | Path, use_omegaconf: bool = True) -> dict[str, Any]:
    """Return the hyperparameters of a YAML file; empty, with a warning, if it is missing.

    Args:
        config_yaml: The file. Tags of Python objects are refused.
        use_omegaconf: As an OmegaConf ``DictConfig``, if OmegaConf is installed.
    """
    import yaml  # optional: PyYAML

    if not Path(config_yaml).exists():
        report.warn(f"There are no hyperparameters at {config_yaml}.")
        return {}
    values: dict[str, Any] = yaml.safe_load(Path(config_yaml).read_text(encoding="utf-8")) or {}
    if use_omegaconf:
        try:
            from omegaconf import OmegaConf  # optional: omegaconf
        except ImportError:
            return values
        return cast(dict[str, Any], OmegaConf.create(values))
    return values


def save_hparams_to_yaml(
    config_yaml: str | Path,
    hparams: dict[str, Any] | Namespace,
    use_omegaconf: bool = True,  # noqa: ARG001 (documented)
) -> None:
    """Write hyperparameters as a YAML file; values that YAML has no form for are left out with a warning.

    Args:
        config_yaml: The file, in a folder that exists.
        hparams: A dict or Namespace; OmegaConf's objects become plain ones.
        use_omegaconf: Without effect: OmegaConf's objects are always converted.

    Raises:
        RuntimeError: The folder does not exist.
        TypeError: `hparams` is neither.
    """
    import yaml  # optional: PyYAML

    values = from_omegaconf(vars(hparams) if isinstance(hparams, Namespace) else hparams)
    if not isinstance(values, dict):
        raise TypeError(f"save_hparams_to_yaml got {type(hparams).__name__}. Expected: a dict. Fix: dict(hparams).")
    written = {}
    for name, value in values.items():
        plain = value.name if hasattr(value, "name") and hasattr(type(value), "__members__") else value
        try:
            yaml.safe_dump(plain)
        except yaml.YAMLError:
            report.warn(f"The hyperparameter {name!r} is left out of {config_yaml}: YAML cannot write {value!r}.")
        else:
            written[name] = plain
    with _opened(config_yaml) as file:
        yaml.safe_dump(dict(written), file)


def _opened(path: str | Path) -> Any:
    if not Path(path).parent.is_dir():
        raise RuntimeError(f"the folder {Path(path).parent} does not exist. Fix: make it first.")
    return Path(path).open("w", newline="", encoding="utf-8")


def pl_load(path_or_url: Any, map_location: Any = None, weights_only: bool | None = None) -> Any:
    """Return the content of a checkpoint.

    Args:
        path_or_url: A file, a URL, or an open file.
        map_location: As in `torch.load`.
        weights_only: False also unpickles objects, which runs code of the file. Default: True.

    Raises:
        CheckpointError: It cannot be read.
    """
    return formats.load(path_or_url, map_location, trust=formats.is_trusted(weights_only), of_any_kind=True)


def migrate_checkpoint(
    checkpoint: dict[str, Any], target_version: str | None = None
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Change a checkpoint of an old version of Lightning, in place, to the layout of Lightning 2.6.

    Args:
        checkpoint: The content of a file.
        target_version: None, for the layout of 2.6.

    Returns:
        The checkpoint, and an empty dict: the single changes are not listed.

    Raises:
        ValueError: Another layout is requested.
    """
    if target_version is not None and not target_version.startswith("2.6"):
        raise MisconfigurationException(
            f"migrate_checkpoint(target_version={target_version!r}): lightlib reads and writes one layout.",
            expected="None, or a version of Lightning 2.6.",
            fix="migrate_checkpoint(checkpoint)",
        )
    content = upgraded(dict(checkpoint))
    checkpoint.clear()
    checkpoint.update(content)
    return checkpoint, {}


def merge_dicts(
    dicts: Sequence[Mapping[str, Any]],
    agg_key_funcs: Mapping[str, Any] | None = None,
    default_func: Callable[[Sequence[float]], float] = lambda values: sum(values) / len(values),
) -> dict[str, Any]:
    """Merge dicts by key, nested ones as well.

    Args:
        dicts: Of numbers.
        agg_key_funcs: The function that merges the numbers of a key; a dict of them for a nested dict.
        default_func: For the other keys. Default: the mean.

    Example:
        >>> merge_dicts([{"a": 1, "b": {"c": 2}}, {"a": 3, "b": {"c": 4}}], {"a": max})
        {'a': 3, 'b': {'c': 3.0}}
    """
    functions = agg_key_funcs or {}
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(_names(dicts)):
        values = [mapping[name] for mapping in dicts if mapping.get(name) is not None]
        function = functions.get(name)
        nested = isinstance(values[0], Mapping)
        merged[name] = merge_dicts(values, function, default_func) if nested else (function or default_func)(values)
    return merged


def _names(dicts: Iterable[Mapping[str, Any]]) -> list[str]:
    return [name for mapping in dicts for name in mapping]
