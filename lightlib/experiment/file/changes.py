"""Changes to the file of an experiment that has begun: which are allowed, and errors for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from lightlib.config.yaml.document import ConfigError
from lightlib.experiment.file.config import ExperimentConfig
from lightlib.experiment.file.masks import is_masked, masked_at
from lightlib.experiment.file.units import UNITS

MAY_CHANGE = (
    "name",
    "description",
    "labels",
    "searcher.max_concurrent_trials",
    "resources.max_slots",
    "resources.priority",
    "resources.weight",
    "resources.resource_pool",
    "max_restarts",
    "log_policies",
    "retention_policy.log_retention_days",
    "checkpoint_storage.save_experiment_best",
    "checkpoint_storage.save_trial_best",
    "checkpoint_storage.save_trial_latest",
)
TRIALS = "searcher.max_trials"
_SEED = "reproducibility.experiment_seed"
_NOTHING = "nothing"


class Change(NamedTuple):
    """One key with its old and its new value.

    Attributes:
        key: The dotted key.
        old: The value of the experiment; None if it had none.
        new: The value of the file; None if it has none. Secrets are masked in both.
    """

    key: str
    old: Any
    new: Any


def changed(old: ExperimentConfig, new: ExperimentConfig, *, continued: bool = False) -> tuple[Change, ...]:
    """Return the differences between an experiment that has begun and its file, all of which are allowed.

    Allowed are the keys of `MAY_CHANGE`, and with `continued` a larger number of trials. A secret that is masked in one
    of the two is equal, and so is a seed that the file does not have. The order of keys has no meaning.

    Args:
        old: The experiment.
        new: What was read now.
        continued: Whether `max_trials` may grow.

    Raises:
        ConfigError: Another key has changed. The message names each with its old and new value, file and line.

    Example:
        >>> from lightlib.experiment.file import read
        >>> file = {"name": "a", "fit": {"trainer": {}}, "searcher": {"name": "single", "metric": "loss"}}
        >>> changed(read(file), read({**file, "max_restarts": 1}))
        (Change(key='max_restarts', old=5, new=1),)
    """
    differences = tuple(_differences(old, new))
    refused = [
        difference
        for difference in differences
        if difference.key not in MAY_CHANGE and not (continued and _more_trials(difference))
    ]
    if not refused:
        return differences
    lines = [_line(difference, new) for difference in refused]
    restored = "; ".join(f"{difference.key}: {_text(difference.old)}" for difference in refused)
    raise ConfigError(
        f"The experiment {old.name!r} has begun, and {'; '.join(lines)}.",
        expected=f"the settings with which it began; only these may change: {', '.join(MAY_CHANGE)}.",
        fix=f"restore {restored}; or give the file another `name:`, which begins a new experiment.",
    )


def _more_trials(change: Change) -> bool:
    return change.key == TRIALS and None not in (change.old, change.new) and change.new > change.old


def _line(change: Change, new: ExperimentConfig) -> str:
    where = new.where(change.key)
    return f"{change.key!r}{f' ({where})' if where else ''} is now {_text(change.new)} instead of {_text(change.old)}"


def _text(value: Any) -> str:
    return _NOTHING if value is None else repr(value)


def _differences(old: ExperimentConfig, new: ExperimentConfig) -> Iterator[Change]:
    before, now = dict(_leaves("", old.plain())), dict(_leaves("", new.plain()))
    for key in dict.fromkeys([*before, *now]):
        earlier, other = before.get(key), now.get(key)
        if (key == _SEED and other is None) or _same(key, earlier, other):
            continue
        yield Change(key, masked_at(key, earlier), masked_at(key, other))


def _same(key: str, first: Any, other: Any) -> bool:
    if isinstance(first, (list, tuple)) and isinstance(other, (list, tuple)):
        pairs = enumerate(zip(first, other, strict=False))
        return len(first) == len(other) and all(_same(f"{key}.{index}", *pair) for index, pair in pairs)
    if isinstance(first, dict) and isinstance(other, dict):
        return first.keys() == other.keys() and all(_same(f"{key}.{name}", first[name], other[name]) for name in first)
    hidden = any(isinstance(value, str) and is_masked(value) for value in (first, other))
    if hidden and masked_at(key, first) == masked_at(key, other):
        return True
    return first == other and type(first) is type(other)


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a mapping; a length such as ``{"batches": 900}`` is one value."""
    is_length = isinstance(value, dict) and len(value) == 1 and next(iter(value)) in UNITS
    if isinstance(value, dict) and value and not is_length:
        for name, child in value.items():
            yield from _leaves(f"{key}.{name}" if key else str(name), child)
    elif value != {}:
        yield key, value
