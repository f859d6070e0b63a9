"""Options of Optuna's samplers, and the packages and spaces that they need: checks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NoReturn

import optuna
from optuna.storages import InMemoryStorage

from lightlib import optional
from lightlib.experiment.file.place import Place
from lightlib.experiment.parameters import Categorical
from lightlib.experiment.samplers import CLASSES, new_study, quiet, sampler_of
from lightlib.experiment.space import Space

PACKAGES: Mapping[str, tuple[str, ...]] = {"gp": ("scipy", "torch"), "cmaes": ("cmaes",), "qmc": ("scipy",)}
_PLAIN: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "None": (type(None),),
}
_MOST_ASKED = 101  # trials of a rehearsal


def check_sampler(
    name: str, options: Mapping[str, Any], space: Space, directions: tuple[str, ...], place: Place
) -> None:
    """Refuse a sampler that cannot work here, or on this space, or with these options.

    A short search without a ledger finds the values that only fail while it runs.

    Args:
        name: The searcher.
        options: Of the file.
        space: Of the hyperparameters.
        directions: ``"minimize"`` or ``"maximize"`` for each metric.
        place: Of the section `searcher`.

    Raises:
        ConfigError: The sampler cannot.
    """
    if missing := [module for module in PACKAGES.get(name, ()) if not optional.is_installed(module)]:
        place.below("name").refuse(
            f"is {name!r}, which needs {' and '.join(missing)}.",
            f"the {'package' if len(missing) == 1 else 'packages'} {', '.join(PACKAGES[name])}.",
            optional.install(*missing),
        )
    _check_space(name, space, place)
    _check_names(name, options, place.below("options"))
    try:
        with quiet():
            _rehearse(name, options, space, directions)
    except Exception as error:  # noqa: BLE001  Optuna raises all kinds, as does numpy below it
        _refused(name, options, error, place)


def _check_space(name: str, space: Space, place: Place) -> None:
    if not space.searched:
        place.below("name").refuse(
            f"is {name!r}, and all hyperparameters are constants.",
            "a hyperparameter with several values.",
            "hyperparameters: {lr: {type: log, minval: -4, maxval: -1}}",
        )
    if name != "cmaes":
        return
    unfit = [
        key for key in space.searched if isinstance(parameter := space.parameters[key], Categorical) or parameter.when
    ]
    if unfit:
        place.below("name").refuse(
            f"is 'cmaes', and {', '.join(unfit)} has categories, or exists only under a condition.",
            "ranges: int, double, log and log_int, without `when`.",
            "searcher.name: tpe",
        )
    if len(space.searched) < 2:
        place.below("name").refuse(
            f"is 'cmaes', and only {space.searched[0]} has several values.",
            "at least two hyperparameters with several values.",
            "searcher.name: tpe",
        )


def _check_names(name: str, options: Mapping[str, Any], place: Place) -> None:
    arguments = _arguments(name)
    allowed = {key for key, types in arguments.items() if types and key != "seed"}
    for key, value in options.items():
        here = place.below(key)
        if key == "seed":
            here.refuse(
                "is not an option: each trial has a seed of its own.",
                "a seed of the experiment, from which those of the trials follow.",
                f"reproducibility.experiment_seed: {value if type(value) is int else 1}, and delete it here.",
            )
        if key not in arguments:
            here.unknown(value, allowed, of=f"the options of {name}")
        types = arguments[key]
        if not types:
            here.refuse("takes an object of Python.", f"one of {', '.join(sorted(allowed))}.", "delete it.")
        fits = isinstance(value, types) and (type(value) is not bool or bool in types)
        if not fits:
            default = inspect.signature(getattr(optuna.samplers, CLASSES[name])).parameters[key].default
            words = ", ".join(accepted.__name__ for accepted in types if accepted is not type(None))
            here.wrong(value, f"{words}; the default is {default}.", here.line(default))


def _arguments(name: str) -> dict[str, tuple[type, ...]]:
    """Return the arguments of a sampler with their plain types; none for one that takes an object of Python."""
    types_by_key = {}
    for key, parameter in inspect.signature(getattr(optuna.samplers, CLASSES[name])).parameters.items():
        names = [part.strip() for part in str(parameter.annotation).split("|")]
        plain = all(part in _PLAIN for part in names)
        types_by_key[key] = tuple({kind for part in names for kind in _PLAIN[part]}) if plain else ()
    return types_by_key


def _rehearse(name: str, options: Mapping[str, Any], space: Space, directions: tuple[str, ...]) -> None:
    """Ask for so many trials that the sampler has to learn from them."""
    defaults = inspect.signature(getattr(optuna.samplers, CLASSES[name])).parameters
    sizes = [options.get(key, parameter.default) for key, parameter in defaults.items() if key in _SIZES]
    sampler = sampler_of(name, options, 0, 0)
    study = new_study(sampler, directions, InMemoryStorage())
    for number in range(min(1 + max((size for size in sizes if size), default=1), _MOST_ASKED)):
        trial = study.ask()
        space.suggest(trial)
        study.tell(trial, [float(number)] * len(directions))


_SIZES = ("n_startup_trials", "population_size", "popsize")


def _refused(name: str, options: Mapping[str, Any], error: Exception, place: Place) -> NoReturn:
    text = str(error).strip().split("\n")[0] or type(error).__name__
    named = [key for key in options if key in text]
    here = place.below("options").below(named[0]) if named else place.below("options" if options else "name")
    here.refuse(
        f"does not work with Optuna {optuna.__version__}: {text}",
        f"what {CLASSES[name]} accepts.",
        "another value, or delete it.",
    )
