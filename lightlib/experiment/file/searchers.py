"""The searchers as data: their keys, required keys, and replacements for unsupported searchers."""

from __future__ import annotations

from collections.abc import Mapping

MODES = ("aggressive", "standard", "conservative")
MISSPELT_MODES = {"agressive": "aggressive"}  # so spelt in pages about Determined: accepted with a warning

_ALL = ("name", "metric", "smaller_is_better", "source_trial_id", "source_checkpoint_uuid", "max_length")
_SEARCH = (*_ALL, "max_concurrent_trials", "synchronous", "duplicates")
_BRACKETS = ("time_metric", "max_time", "divisor", "stop_once")
_ADAPTIVE = ("mode", "max_rungs", "bracket_rungs")
_SAMPLER = (*_SEARCH, "max_trials", "options", "stopping")

KEYS: Mapping[str, tuple[str, ...]] = {
    "single": _ALL,
    "random": (*_SEARCH, "max_trials"),
    "grid": _SEARCH,
    "adaptive_asha": (*_SEARCH, "max_trials", *_BRACKETS, *_ADAPTIVE),
    "async_halving": (*_SEARCH, "max_trials", *_BRACKETS, "num_rungs"),
    "halving": (*_SEARCH, "max_trials", "time_metric", "max_time", "divisor", "num_rungs"),
    "tpe": _SAMPLER,
    "gp": _SAMPLER,
    "cmaes": _SAMPLER,
    "qmc": _SAMPLER,
    "nsga2": _SAMPLER,
    "nsga3": _SAMPLER,
}
CUSTOM_KEYS = (*(name for name in _ALL if name != "name"), "max_concurrent_trials", "class_path", "init_args")
REQUIRED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(KEYS, ("metric", "max_trials")),
    "single": ("metric",),
    "grid": ("metric",),
    "async_halving": ("metric", "max_trials", "num_rungs"),
    "halving": ("metric", "max_trials", "num_rungs"),
}
NEED_LENGTH = ("adaptive_asha", "async_halving", "halving")
ONE_METRIC = (*NEED_LENGTH, "cmaes")  # the rest accept a list of metrics

# Names of other versions of Determined, and of searchers that lightlib does not have: what to write instead.
INSTEAD: Mapping[str, tuple[str, str]] = {
    "adaptive": ("a searcher of old versions of Determined", "adaptive_asha"),
    "adaptive_simple": ("a searcher of old versions of Determined", "adaptive_asha"),
    "sync_halving": ("a searcher of old versions of Determined", "halving"),
    "pbt": ("population-based training, which lightlib does not have", "adaptive_asha"),
    "population": ("population-based training, which lightlib does not have", "adaptive_asha"),
    "asha": ("not the name of a searcher", "adaptive_asha"),
}
EXAMPLES = {
    "metric": "val_loss",
    "max_trials": 16,
    "num_rungs": 4,
    "max_length": {"epochs": 16},
    "time_metric": "epochs",
    "max_time": 16,
}
