"""Read an experiment file, or a mapping, and write the copy that is stored with the experiment."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightlib import report, safe_files
from lightlib.config.yaml.document import ConfigError, Document, Entry
from lightlib.config.yaml.file import dump, text_of
from lightlib.experiment.file import checks
from lightlib.experiment.file.config import ExperimentConfig
from lightlib.experiment.file.masks import from_environment, hide_lines
from lightlib.experiment.file.overrides import nest, override
from lightlib.experiment.file.place import Place

# Sections that have no effect although a run may depend on them: they warn.
_MISSED = {
    "integrations": "Pachyderm is not supported, so its data is missing. Fix: read the data in a data module.",
    "security": "Kerberos is not supported, so trials have no ticket. Fix: run kinit before the workers start.",
}


def read(source: str | os.PathLike[str] | Mapping[str, Any], overrides: Iterable[str] = ()) -> ExperimentConfig:
    """Return an experiment, checked, with every default filled in.

    The keys are those of Determined, in the shapes of its versions 0.24 and 0.38, and `fit`. A section may be nested or
    have dotted keys. Keys without an effect are noted. Secrets that are masked, as in a stored copy, are read from the
    variables ``LIGHTLIB_SECRET_…``.

    Args:
        source: A YAML file, or a mapping.
        overrides: ``KEY=VALUE`` with dotted keys, which win over the file.

    Raises:
        ConfigError: The YAML is broken, a key is unknown or missing, or a value has the wrong type or is out of range.
            The message names the file, the line and the fix.

    Example:
        >>> config = read({
        ...     "name": "mnist",
        ...     "entrypoint": "model:Classifier",
        ...     "hyperparameters": {"global_batch_size": 64, "lr": {"type": "log", "minval": -4, "maxval": -1}},
        ...     "searcher": {"name": "random", "metric": "val_loss", "max_trials": 16},
        ... }, ["searcher.max_trials=8"])
        >>> config.searcher.max_trials, config.resources.slots_per_trial
        (8, 1)
    """
    content, entries, name = _content_of(source)
    nest(content, ExperimentConfig.known(), entries)
    for text in overrides:
        override(content, text, entries)
    place = Place("", entries, name)
    if content.get("name") is None and name:
        content["name"] = Path(name).stem
    content = from_environment(content)
    _drop_missed(content, place)
    _refuse_pbs(content, place)
    _move_seed(content, place)
    return dataclasses.replace(ExperimentConfig.read(content, place), places=place)


def save(config: ExperimentConfig, path: str | os.PathLike[str]) -> None:
    """Write an experiment, with every default and without secrets, as YAML that `read` reads again.

    Raises:
        OSError: The file cannot be written.

    Example:
        >>> config = read({"name": "a", "fit": {"trainer": {}}, "searcher": {"name": "single", "metric": "val_loss"}})
        >>> save(config, "experiment.yaml")
        >>> read("experiment.yaml") == config
        True
    """
    safe_files.replace(path, f"{dump(config.masked())}".encode())


def _content_of(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Entry], str]:
    """Return the plain values of a source, the places of its keys, and its name."""
    if isinstance(source, Mapping):
        return copy.deepcopy(checks.mapping(source, Place("", {}))), {}, ""
    text, name = text_of(source), os.fspath(source)
    try:
        document = Document(text, name, mapping=True)
    except ConfigError as error:
        raise ConfigError(hide_lines(str(error), text)) from None
    return document.value, dict(document.entries), name


def _drop_missed(content: dict[str, Any], place: Place) -> None:
    """Remove sections without an effect, with a warning."""
    for key, reason in _MISSED.items():
        if content.pop(key, None):
            report.warn(f"{place.below(key).text} has no effect: {reason}")


def _refuse_pbs(content: dict[str, Any], place: Place) -> None:
    if content.pop("pbs", None):
        place.below("pbs").refuse(
            "asks for jobs of PBS, which lightlib does not submit.",
            "a worker in each job that you submit.",
            "delete it, and run `lightlib experiment work URL` in a job of qsub.",
        )


def _move_seed(content: dict[str, Any], place: Place) -> None:
    """Move `environment.experiment_seed`, where pages about Determined have it, to `reproducibility`."""
    environment = content.get("environment")
    if not isinstance(environment, dict) or environment.get("experiment_seed") is None:
        return
    seed, section = environment.pop("experiment_seed"), content.setdefault("reproducibility", {}) or {}
    here, there = place.below("environment.experiment_seed"), place.below("reproducibility.experiment_seed")
    if isinstance(section, dict) and section.get("experiment_seed") not in (None, seed):
        here.refuse(
            f"is {seed!r}, and {there.text} is {section['experiment_seed']!r}.", "one seed.", f"delete {here.key}."
        )
    if isinstance(section, dict):
        content["reproducibility"] = {**section, "experiment_seed": seed}
        if here.key in place.entries:
            place.entries[there.key] = place.entries[here.key]
