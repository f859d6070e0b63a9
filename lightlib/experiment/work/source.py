"""Sources of trials, as the section `searcher` of an experiment file describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.snapshot import Snapshot
from lightlib.experiment.search.brackets import brackets_of
from lightlib.experiment.search.halving import Halving, Rule
from lightlib.experiment.search.plain import NewTrial, Plain
from lightlib.experiment.space import Space

if TYPE_CHECKING:
    from lightlib.experiment.file import ExperimentConfig

_TRIES = 100  # to find a point that was not tried before
PLAIN, HALVING = ("single", "random", "grid"), ("adaptive_asha", "async_halving", "halving")


def source_of(config: ExperimentConfig, space: Space, slots: int) -> Plain | Halving:
    """Return the source of an experiment's trials.

    Args:
        config: The experiment, with its seed.
        space: Of its hyperparameters.
        slots: How many trials run at once if `max_concurrent_trials` is 0.

    Raises:
        ConfigError: The searcher does not run yet, or does not fit the space.
    """
    searcher = config.searcher
    place = config.places.below("searcher")
    if searcher.name not in (*PLAIN, *HALVING):
        place.below("name").refuse(
            f"is {searcher.name or searcher.class_path!r}, which does not run trials yet.",
            f"one of {', '.join((*PLAIN, *HALVING))} in this version.",
            "searcher.name: random",
        )
    if len(searcher.metrics) > 1:
        place.below("metric").refuse("has several metrics, which do not run yet.", "one metric.", "searcher.metric: a")
    if searcher.name == "single" and space.searched:
        place.below("name").refuse(
            f"is 'single', which has one trial, and {', '.join(space.searched)} have several values.",
            "constants.",
            "a value in place of each space, or searcher.name: random and max_trials.",
        )
    if searcher.name in HALVING:
        return _halving(config, _random(config, space))
    concurrency = searcher.max_concurrent_trials or max(slots, 1)
    if searcher.name == "random":
        assert searcher.max_trials is not None, "checked when the file is read"
        return Plain(searcher.max_trials, concurrency, _random(config, space))
    distributions = space.distributions()
    points = space.grid_numbers() if searcher.name == "grid" else [{}]

    def point(number: int, _: Snapshot) -> Entry:
        params = points[number]
        return Entry(number, params=params, distributions={key: distributions[key] for key in params})

    return Plain(len(points), concurrency, point, replaces=False)


def _random(config: ExperimentConfig, space: Space) -> NewTrial:
    """Return the random trial with a number, from it and the seed alone; points that were tried are skipped."""
    seed, distributions = config.reproducibility.experiment_seed, space.distributions()
    assert seed is not None, "the stored experiment has one"
    tries = 1 if config.searcher.duplicates == "allow" else _TRIES

    def random_trial(number: int, snapshot: Snapshot) -> Entry:
        before = [dict(chain[0].params) for trial, chain in snapshot.chains.items() if trial < number]
        drawn = (space.draw_trial(seed, number, again) for again in range(tries))
        params = next((one for one in drawn if one not in before), space.draw_trial(seed, number))
        return Entry(number, params=params, distributions=distributions)

    return random_trial


def _halving(config: ExperimentConfig, new: NewTrial) -> Halving:
    """Return the source of a search that compares its trials at rungs."""
    searcher = config.searcher
    length = searcher.max_length.amount if searcher.max_length else max(int(searcher.max_time or 1), 1)
    assert searcher.max_trials is not None, "checked when the file is read"
    brackets = brackets_of(
        searcher.name or "",
        searcher.max_trials,
        length,
        num_rungs=searcher.num_rungs,
        divisor=searcher.divisor,
        max_concurrent_trials=searcher.max_concurrent_trials,
        mode=searcher.mode,
        max_rungs=searcher.max_rungs,
        bracket_rungs=searcher.bracket_rungs,
    )
    rule: Rule = "stopping" if searcher.stop_once else "promoting"
    return Halving(brackets, searcher.divisor, new, "synchronous" if _is_synchronous(config) else rule)


def _is_synchronous(config: ExperimentConfig) -> bool:
    return config.searcher.synchronous or config.searcher.name == "halving"
