"""The section `searcher`: how the hyperparameters of trials are chosen, and which trials end early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import Self

from lightlib import report
from lightlib.experiment.file import checks, searchers
from lightlib.experiment.file.part import Part, key, plain
from lightlib.experiment.file.place import Place
from lightlib.experiment.file.searchers import CUSTOM_KEYS, EXAMPLES, INSTEAD, KEYS, NEED_LENGTH, ONE_METRIC, REQUIRED
from lightlib.experiment.file.units import Length, length

_known_mode = checks.choice(*searchers.MODES, renamed=searchers.MISSPELT_MODES)


def _mode(value: Any, place: Place) -> str:
    """Check the mode of brackets; the spelling ``agressive`` is accepted with a warning."""
    mode: str = _known_mode(value, place)
    if mode != value:
        report.warn(f"{place.text} is spelt {value!r}. Read as {mode!r}; write {place.line(mode)}.")
    return mode


def _name(value: Any, place: Place) -> str:
    if isinstance(value, str) and value in INSTEAD:
        problem, instead = INSTEAD[value]
        place.refuse(f"is {value!r}, {problem}.", f"one of {', '.join(KEYS)}.", place.line(instead))
    if value == "custom":
        fix = "searcher: {class_path: package.module.MySearcher, metric: val_loss}"
        place.refuse("is 'custom', which has no name here.", "the class of your searcher.", fix)
    return str(checks.choice(*KEYS)(value, place))


def _metric(value: Any, place: Place) -> str | tuple[str, ...]:
    if isinstance(value, list) and value:
        names: tuple[str, ...] = checks.several(checks.text("val_loss"), "val_loss")(value, place)
        return names
    return str(checks.text("val_loss")(value, place))


def _smaller(value: Any, place: Place) -> bool | tuple[bool, ...]:
    if isinstance(value, list) and value:
        flags: tuple[bool, ...] = checks.several(checks.flag, True)(value, place)
        return flags
    return checks.flag(value, place)


def _trial_id(value: Any, place: Place) -> int | str:
    if type(value) is int and value >= 0:
        return value
    if not isinstance(value, str) or not value.strip():
        place.wrong(value, "the id of a trial: an int, or EXPERIMENT/TRIAL.", place.line("mnist/7"))
    return value


class Stopping(Part):
    """The brackets that end trials of a sampler early, as those of ``adaptive_asha``.

    Attributes:
        mode: ``"aggressive"``, ``"standard"`` (default) or ``"conservative"``.
        divisor: One of how many trials passes a rung; greater than 1. Default 4.
        max_rungs: At least 1. Default 5.
        bracket_rungs: The rungs of each bracket. Default: from the mode.
        stop_once: Whether a trial that was stopped never resumes. Default True.
        time_metric: The validation metric that measures how far a trial is. Default: its length.
        max_time: The value of `time_metric` at which a trial is complete.
    """

    section: ClassVar[str] = "searcher.stopping"

    mode: str = key(_mode, default="standard")
    divisor: float = key(checks.number(above=1, example=4), default=4)
    max_rungs: int = key(checks.integer(1), default=5)
    bracket_rungs: tuple[int, ...] = key(checks.several(checks.integer(1), 3), default=())
    stop_once: bool = key(checks.flag, default=True)
    time_metric: str | None = key(checks.text("epochs"), default=None)
    max_time: float | None = key(checks.number(above=0, example=16), default=None)

    def checked(self, place: Place) -> Self:
        check_time(self, place)
        return self


class Searcher(Part):
    """How the hyperparameters of trials are chosen, and which trials end early.

    A searcher reads only the keys that `lightlib.experiment.file.searchers.KEYS` lists for it; the rest keep their
    defaults.

    Attributes:
        name: A key of `KEYS`; None with a `class_path`.
        metric: The validation metric, or several.
        smaller_is_better: Whether less is better, one bool for each metric. Default True.
        max_trials: How many sets of hyperparameters are tried, at least 1. None for ``single`` and ``grid``.
        max_length: The length of a trial, in batches, records, epochs, or the units that a program reports. Default:
            the training code decides.
        time_metric: The validation metric that measures how far a trial is; with `max_time` in place of `max_length`.
        max_time: The value of `time_metric` at which a trial is complete; greater than 0.
        max_concurrent_trials: How many trials run at once; 0: as many as there are slots. Default 16.
        mode: ``"aggressive"``, ``"standard"`` (default) or ``"conservative"``.
        divisor: One of how many trials passes a rung; greater than 1. Default 4.
        max_rungs: Of ``adaptive_asha``, at least 1. Default 5.
        num_rungs: Of ``async_halving`` and ``halving``, at least 1.
        bracket_rungs: The rungs of each bracket of ``adaptive_asha``. Default: from the mode.
        stop_once: Whether a trial that was stopped never resumes; False pauses and promotes. Default True.
        source_trial_id: The trial with the first weights of every trial, in its newest checkpoint: EXPERIMENT/TRIAL.
        source_checkpoint_uuid: The path of the checkpoint with the first weights of every trial.
        synchronous: Whether trials run in batches of `max_concurrent_trials`, so that kills and the number of workers
            change no result. Default False.
        duplicates: ``"skip"`` or ``"allow"`` points that were tried. Default: skip for ``random`` and ``grid``.
        options: Arguments of Optuna's sampler.
        stopping: The brackets that end trials of a sampler early. Default: none.
        class_path: A `Searcher` of your own, and `init_args` its arguments.
    """

    section: ClassVar[str] = "searcher"

    name: str | None = key(_name, default=None)
    metric: str | tuple[str, ...] = key(_metric, default="")
    smaller_is_better: bool | tuple[bool, ...] = key(_smaller, default=True)
    max_trials: int | None = key(checks.integer(1), default=None)
    max_length: Length | None = key(length, default=None)
    time_metric: str | None = key(checks.text("epochs"), default=None)
    max_time: float | None = key(checks.number(above=0, example=16), default=None)
    max_concurrent_trials: int = key(checks.integer(0), default=16)
    mode: str = key(_mode, default="standard")
    divisor: float = key(checks.number(above=1, example=4), default=4)
    max_rungs: int = key(checks.integer(1), default=5)
    num_rungs: int | None = key(checks.integer(1), default=None)
    bracket_rungs: tuple[int, ...] = key(checks.several(checks.integer(1), 3), default=())
    stop_once: bool = key(checks.flag, default=True)
    source_trial_id: int | str | None = key(_trial_id, default=None)
    source_checkpoint_uuid: str | None = key(checks.text("b7c7…"), default=None)
    synchronous: bool = key(checks.flag, default=False)
    duplicates: str | None = key(checks.choice("skip", "allow"), default=None)
    options: Mapping[str, Any] = key(checks.mapping, default={})
    stopping: Stopping | None = key(Stopping.read, default=None)
    class_path: str | None = key(checks.text("package.module.MySearcher"), default=None)
    init_args: Mapping[str, Any] = key(checks.mapping, default={})

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics as a tuple."""
        return self.metric if isinstance(self.metric, tuple) else (self.metric,)

    @property
    def directions(self) -> tuple[bool, ...]:
        """Whether less is better, for each of `metrics`."""
        smaller = self.smaller_is_better
        return smaller if isinstance(smaller, tuple) else (smaller,) * len(self.metrics)

    @property
    def has_rungs(self) -> bool:
        """Whether trials are compared at lengths before their end."""
        return self.name in NEED_LENGTH or self.stopping is not None

    @classmethod
    def read(cls, value: Any, place: Place) -> Self:
        """Return the section that a mapping describes; keys of another searcher are refused."""
        mapping = checks.mapping(value, place)
        name, own_class = mapping.get("name"), mapping.get("class_path")
        if own_class is not None and name is not None:
            problem, expected = "has a `name` and a `class_path`.", "one of the two."
            place.below("class_path").refuse(problem, expected, "delete `name`.")
        if own_class is None:
            if name is None:
                place.refuse("has no 'name'.", f"one of {', '.join(KEYS)}.", "searcher.name: adaptive_asha")
            name = _name(name, place.below("name"))
        keys, required = (KEYS[name], REQUIRED[name]) if name else (CUSTOM_KEYS, ("metric",))
        for setting_name, setting in mapping.items():
            if setting_name not in keys and setting is not None:
                _foreign(setting_name, setting, name or "a searcher of your own", keys, place)
        for setting_name in required:
            if mapping.get(setting_name) is None:
                place.refuse(
                    f"has no {setting_name!r}, which {name or 'a searcher of your own'} needs.",
                    f"the keys {', '.join(required)}.",
                    place.below(setting_name).line(EXAMPLES[setting_name]),
                )
        kept = {setting_name: setting for setting_name, setting in mapping.items() if setting_name in keys}
        return super().read(kept, place)

    def checked(self, place: Place) -> Self:
        if self.source_trial_id is not None and self.source_checkpoint_uuid is not None:
            place.below("source_checkpoint_uuid").refuse(
                "stands next to source_trial_id: both name the first weights of every trial.",
                "at most one of source_trial_id and source_checkpoint_uuid.",
                "delete one of the two.",
            )
        self._check_metrics(place)
        check_time(self, place)
        time = self.max_time if self.stopping is None else self.stopping.max_time
        if self.has_rungs and self.max_length is None and time is None:
            place.refuse(
                f"has no length, which {'stopping' if self.stopping else self.name} divides into rungs.",
                "max_length, or time_metric and max_time.",
                place.below("max_length").line(EXAMPLES["max_length"]),
            )
        if self.has_rungs and self.max_length is not None and time is not None:
            place.below("max_length").refuse(
                "stands next to max_time: both are the length of a trial.",
                "max_length, or time_metric and max_time.",
                "delete max_length, or both time_metric and max_time.",
            )
        return self

    def _check_metrics(self, place: Place) -> None:
        smaller = self.smaller_is_better
        if isinstance(self.metric, tuple) and (self.name in ONE_METRIC or self.stopping is not None):
            place.below("metric").wrong(
                list(self.metric),
                f"one metric: {'cmaes compares' if self.name == 'cmaes' else 'rungs compare'} trials by one number.",
                f"{place.below('metric').line(self.metric[0])}, or searcher.name: nsga2",
            )
        if isinstance(smaller, tuple) and len(smaller) != len(self.metrics):
            right = [*smaller, *(True for _ in self.metrics)][: len(self.metrics)]
            here = place.below("smaller_is_better")
            here.wrong(list(smaller), f"as many values as metrics: {len(self.metrics)}.", here.line(right))

    def plain(self) -> dict[str, Any]:
        """Return the keys of this searcher as plain values."""
        keys = KEYS[self.name] if self.name else CUSTOM_KEYS
        values = {name: plain(getattr(self, name)) for name in keys}
        return {name: value for name, value in values.items() if value not in (None, {}, [])}


def check_time(section: Searcher | Stopping, place: Place) -> None:
    """Refuse one of `time_metric` and `max_time` without its counterpart."""
    pairs = (("time_metric", "max_time"), ("max_time", "time_metric"))
    for name, missing in pairs:
        if getattr(section, name) is not None and getattr(section, missing) is None:
            place.below(name).refuse(
                f"stands without {missing}.",
                "both time_metric and max_time, or neither.",
                place.below(missing).line(EXAMPLES[missing]),
            )


def _foreign(name: str, value: Any, searcher: str, keys: tuple[str, ...], place: Place) -> None:
    """Raise for a key that the searcher does not have; name the searchers that have it."""
    owners = [searcher for searcher, keys in KEYS.items() if name in keys]
    if not owners and name in CUSTOM_KEYS:
        owners = ["a class_path"]
    here = place.below(name)
    if not owners:
        here.unknown(value, keys, of=f"searcher, with the name {searcher}")
    here.refuse(
        f"is not a key of {searcher}: it belongs to {', '.join(owners)}.",
        f"one of {', '.join(keys)}.",
        f"delete it, or write searcher.name: {owners[0]}",
    )
