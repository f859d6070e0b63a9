"""fit_settings: the configuration of a trial's fit, from the experiment and its hyperparameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lightlib.config.yaml.document import Document, Entry
from lightlib.config.yaml.file import text_of
from lightlib.errors import MisconfigurationException, shown
from lightlib.experiment.file.config import ExperimentConfig
from lightlib.experiment.space import trial_seed
from lightlib.experiment.trial.classes import Parameters, class_path, parameters
from lightlib.experiment.trial.merging import BUILT, merged, put_all
from lightlib.experiment.trial.trainer import apply_keys, apply_length, apply_slots, named, trial_length

SECTIONS = (*BUILT, "trainer", "seed_everything", "lr_scheduler_config", "ckpt_path", "weights_only", "resume")
_COMMANDS = ("fit", "validate", "test", "predict")


class Settings(NamedTuple):
    """The configuration of a trial's fit.

    Attributes:
        fit: The contents of a `lightlib fit` file, as plain values.
        untaken: The keys of hyperparameters that no section and no parameter takes; they only reach
            `lightlib.experiment.current().hparams`.
    """

    fit: dict[str, Any]
    untaken: list[str]


def fit_settings(
    config: ExperimentConfig,
    hparams: Mapping[str, Any],
    *,
    trial: int,
    seed: int,
    devices: int,
    accelerator: str,
    context: Path,
) -> Settings:
    """Return the configuration of a trial's fit.

    Later layers win: the entrypoint, a class or a file; `fit`; `min_validation_period` and `optimizations`; the
    hyperparameters; the length of the trial and its devices. The arguments stay as they are.

    A hyperparameter with the name of a section, such as ``trainer.gradient_clip_val`` or ``model.lr``, is set there.
    Any other is an argument of the model and of the data module: of those that have a parameter with the first part of
    its key. Only for these are the two classes imported.

    Args:
        config: The experiment. Its entrypoint is not a command line.
        hparams: The values of the trial by dotted key, those of `Space.values`.
        trial: The number of the trial, from 0.
        seed: The seed of the experiment. The trial's seed is made of both, unless `fit` or a hyperparameter sets
            `seed_everything`.
        devices: The slots of the trial, at least 1.
        accelerator: Used unless the Trainer's section sets one.
        context: The folder of the program.

    Raises:
        ConfigError: The file of the entrypoint cannot be read.
        MisconfigurationException: The class of the entrypoint is not found, a hyperparameter cannot be set, or a length
            cannot be converted to steps.

    Example:
        >>> from lightlib.experiment.file import read
        >>> config = read({
        ...     "name": "lines",
        ...     "fit": {"model": {"class_path": "model.Line"}},
        ...     "searcher": {"name": "single", "metric": "val_loss", "max_length": {"epochs": 3}},
        ... })
        >>> found = fit_settings(
        ...     config, {"model.lr": 0.1}, trial=0, seed=42, devices=1, accelerator="cpu", context=Path(".")
        ... )
        >>> found.fit["model"], found.fit["trainer"]["max_epochs"], found.fit["seed_everything"]
        ({'class_path': 'model.Line', 'init_args': {'lr': 0.1}}, 3, 1949701853)
    """
    fit = _layers(config, context)
    apply_keys(_trainer(fit, config), config, hparams)
    length = trial_length(config)
    ruled = {"trainer.devices": "resources.slots_per_trial"}
    if length is not None:
        ruled |= dict.fromkeys(("trainer.max_epochs", "trainer.max_steps"), "the length in the section searcher")
    _refuse(hparams, ruled, config)
    untaken = _put_hyperparameters(fit, config, hparams, context)
    trainer = _trainer(fit, config)
    apply_length(trainer, length, config, hparams)
    apply_slots(trainer, config, devices, accelerator)
    _set_seed(fit, config, hparams, trial_seed(seed, trial))
    return Settings(fit, untaken)


# the layers
def _layers(config: ExperimentConfig, context: Path) -> dict[str, Any]:
    """Return `fit` over the entrypoint."""
    fit: dict[str, Any] = {}
    entrypoint = config.entrypoint
    if entrypoint is not None and entrypoint.class_path:
        path = class_path(entrypoint.class_path, context, config.where("entrypoint"))
        fit = {"model": {"class_path": path}}
    elif entrypoint is not None and entrypoint.file:
        file = context / entrypoint.file
        document = Document(text_of(file), str(file), mapping=True)
        content = document.value
        of_fit = content["fit"] if isinstance(content.get("fit"), Mapping) else {}
        shared = {key: value for key, value in content.items() if key not in _COMMANDS}
        put_all(fit, merged(shared, of_fit), lambda key: _place(document.entries, key))
    put_all(fit, config.fit, lambda key: config.where(f"fit.{key}"))
    return fit


def _place(entries: Mapping[str, Entry], key: str) -> str:
    return entries[key].place if key in entries else ""


def _trainer(fit: dict[str, Any], config: ExperimentConfig) -> dict[str, Any]:
    """Return the section `trainer`, created if it is missing."""
    if fit.get("trainer") is None:
        fit["trainer"] = {}
    trainer = fit["trainer"]
    if not isinstance(trainer, dict):
        raise MisconfigurationException(
            f"{named(config, 'fit.trainer')} is {shown(trainer)}.",
            expected="a mapping of the Trainer's arguments.",
            fix="fit: {trainer: {max_epochs: 3}}",
        )
    return trainer


def _set_seed(fit: dict[str, Any], config: ExperimentConfig, hparams: Mapping[str, Any], seed: int) -> None:
    chosen = hparams.get("seed_everything", config.fit.get("seed_everything"))
    unset = chosen is None or chosen is True
    if unset and fit.get("seed_everything") is not False:  # a file that a run has saved always holds a seed
        fit["seed_everything"] = seed


# hyperparameters
def _refuse(hparams: Mapping[str, Any], ruled: Mapping[str, str], config: ExperimentConfig) -> None:
    """Refuse hyperparameters that the experiment itself sets."""
    for key in hparams:
        if key in ruled:
            raise MisconfigurationException(
                f"Hyperparameter {named(config, f'hyperparameters.{key}', key)} has no effect: {ruled[key]} sets it.",
                expected="hyperparameters that change the trial.",
                fix=f"delete the hyperparameter, and set {ruled[key]}.",
            )


def _put_hyperparameters(
    fit: dict[str, Any], config: ExperimentConfig, hparams: Mapping[str, Any], context: Path
) -> list[str]:
    """Set the hyperparameters, and return the keys of those that nothing takes."""

    def where(key: str) -> str:
        return config.where(f"hyperparameters.{key}")

    placed = {key: value for key, value in hparams.items() if key.partition(".")[0] in SECTIONS}
    put_all(fit, placed, where)
    _check_classes(fit, config, placed)
    bare = [key for key in hparams if key not in placed]
    owners = _owners(fit, context) if bare else {}
    untaken: list[str] = []
    origins: dict[str, str] = {}
    for key in bare:
        first = key.partition(".")[0]
        takers = [f"{section}.init_args" for section, accepted in owners.items() if first in accepted.names]
        if not takers and "model" in owners and owners["model"].takes_any:
            takers = ["model.dict_kwargs"]
        origins |= {f"{taker}.{key}": key for taker in takers}
        untaken += [] if takers else [key]
    put_all(fit, {target: hparams[key] for target, key in origins.items()}, lambda target: where(origins[target]))
    return untaken


def _owners(fit: Mapping[str, Any], context: Path) -> dict[str, Parameters]:
    """Return the parameters of the model and of the data module, of those that the configuration names."""
    owners = {}
    for section in ("model", "data"):
        section_values = fit.get(section)
        if isinstance(section_values, dict) and "class_path" in section_values:
            owners[section] = parameters(section_values["class_path"], context)
    return owners


def _check_classes(fit: Mapping[str, Any], config: ExperimentConfig, keys: Iterable[str]) -> None:
    """Refuse hyperparameters of a section that names no class."""
    for key in keys:
        section = key.partition(".")[0]
        section_values = fit.get(section)
        if section in BUILT and isinstance(section_values, dict) and "class_path" not in section_values:
            raise MisconfigurationException(
                f"Hyperparameter {named(config, f'hyperparameters.{key}', key)} is an argument of {section!r}, which "
                "names no class.",
                expected=f"a class_path in {section!r}, or another name for a hyperparameter of your own.",
                fix=f"fit: {{{section}: {{class_path: package.module.Class}}}}",
            )
