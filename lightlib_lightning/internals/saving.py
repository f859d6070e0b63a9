"""Private functions of Lightning that read checkpoints and hyperparameter files; rl4co calls some."""

from __future__ import annotations

import csv
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightlib.checkpoint import formats
from lightlib.checkpoint.directory.tensors import read_tensors
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.loading import build, fill, load_datamodule, load_from_checkpoint
from lightlib.errors import ArgumentTypeError, shown

__all__ = ["load", "load_hparams_from_tags_csv", "load_hparams_from_yaml", "load_object", "load_state",
           "save_hparams_to_tags_csv", "save_hparams_to_yaml", "update_hparams"]  # fmt: skip


def load(path_or_url: Any, map_location: Any = None, weights_only: bool | None = None) -> Any:
    """Return the content of a checkpoint: `_load`. No code in it is run unless `weights_only` is False."""
    return read_tensors(
        formats.load(path_or_url, map_location, trust=formats.is_trusted(weights_only), of_any_kind=True)
    )


def load_object(
    cls: Any, checkpoint_path: Any, map_location: Any = None, hparams_file: Any = None, strict: bool | None = None,
    weights_only: bool | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """Build a module or data module from a checkpoint: `_load_from_checkpoint`."""
    if issubclass(cls, DataModule):
        return load_datamodule(cls, checkpoint_path, map_location, hparams_file, weights_only, **kwargs)
    return load_from_checkpoint(cls, checkpoint_path, map_location, hparams_file, strict, weights_only, **kwargs)


def load_state(cls: Any, checkpoint: dict[str, Any], strict: bool | None = None, **cls_kwargs_new: Any) -> Any:
    """Build a module or data module from the content of a checkpoint: `_load_state`."""
    built = build(cls, checkpoint, None, cls_kwargs_new, trust=True)
    if isinstance(built, DataModule):
        if (state := checkpoint.get(cls.__qualname__)) is not None:
            built.load_state_dict(state)
        return built
    fill(built, checkpoint, strict)
    return built


def update_hparams(hparams: dict[str, Any], updates: Mapping[str, Any]) -> None:
    """Write `updates` into `hparams`, entry by entry also in nested dicts."""
    for name, value in updates.items():
        if isinstance(value, Mapping) and isinstance(hparams.get(name), dict):
            update_hparams(hparams[name], value)
        else:
            hparams[name] = value


def load_hparams_from_yaml(config_yaml: str | Path, use_omegaconf: bool = True) -> dict[str, Any]:  # noqa: ARG001
    """Return the hyperparameters in a YAML file; an empty dict if there is no file."""
    import yaml  # optional: PyYAML

    path = Path(config_yaml)
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}


def save_hparams_to_yaml(config_yaml: str | Path, hparams: Any, use_omegaconf: bool = True) -> None:  # noqa: ARG001
    """Write hyperparameters to a YAML file, as plain values."""
    import yaml  # optional: PyYAML

    from lightlib.loggers.hyperparameters import plain  # optional: nothing, but only this function needs it

    Path(config_yaml).write_text(yaml.safe_dump(plain(_entries(hparams))), encoding="utf-8")


def load_hparams_from_tags_csv(tags_csv: str | Path) -> dict[str, Any]:
    """Return the hyperparameters in a file of lines ``key,value``; an empty dict if there is no file."""
    path = Path(tags_csv)
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row["key"]: _number(row["value"]) for row in csv.DictReader(file)}


def save_hparams_to_tags_csv(tags_csv: str | Path, hparams: Any) -> None:
    """Write hyperparameters to a file of lines ``key,value``."""
    with Path(tags_csv).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["key", "value"])
        writer.writerows(_entries(hparams).items())


def _entries(hparams: Any) -> dict[str, Any]:
    if isinstance(hparams, (Mapping, Namespace)):
        return dict(hparams) if isinstance(hparams, Mapping) else vars(hparams)
    raise ArgumentTypeError(
        f"hparams is {shown(hparams)}.", expected="a dict or a Namespace.", fix="hparams=vars(args)"
    )


def _number(text: str) -> Any:
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
