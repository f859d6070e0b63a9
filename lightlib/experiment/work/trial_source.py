"""Sources of trials, as the section `searcher` of an experiment file describes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.snapshot import Snapshot
from lightlib.experiment.samplers import CLASSES, Sampled
from lightlib.experiment.searchers.brackets import brackets_of
from lightlib.experiment.searchers.custom import Custom
from lightlib.experiment.searchers.halving import Halving, Rule
from lightlib.experiment.searchers.plain import NewTrial, Plain
from lightlib.experiment.space import Space
from lightlib.experiment.work.sampler_options import check_sampler

if TYPE_CHECKING:
    from lightlib.experiment.file import ExperimentConfig

_TRIES = 100  # to find a point that was not tried before
PLAIN, HALVING = ("single", "random", "grid"), ("adaptive_asha", "async_halving", "halving")


def source_of(
    config: ExperimentConfig, space: Space, slots: int, ledger: Ledger | None = None
) -> Plain | Halving | Custom:
    """Return the source of an experiment's trials.

    Args:
        config: The experiment, with its seed.
        space: Of its hyperparameters.
        slots: How many trials run at once if `max_concurrent_trials` is 0.
        ledger: Of the experiment, from which the trials of a searcher of the user's own follow.

    Raises:
        ConfigError: The searcher does not fit the space.
    """
    searcher = config.searcher
    place = config.places.below("searcher")
    if searcher.name == "single" and space.searched:
        place.below("name").refuse(
            f"is 'single', which has one trial, and {', '.join(space.searched)} have several values.",
            "constants.",
            "a value in place of each space, or searcher.name: random and max_trials.",
        )
    if searcher.has_rungs:
        return _halving(config, space)
    concurrency = searcher.max_concurrent_trials or max(slots, 1)
    if searcher.class_path is not None:
        assert ledger is not None, "needed for trials, not for checks"
        length = searcher.max_length and searcher.max_length.amount
        return Custom(ledger, concurrency, space.distributions(), length)
    if searcher.name == "random" or searcher.name in CLASSES:
        assert searcher.max_trials is not None, "checked when the file is read"
        return Plain(searcher.max_trials, concurrency, _new_trial(config, space, searcher.max_concurrent_trials))
    distributions = space.distributions()
    points = space.grid_numbers() if searcher.name == "grid" else [{}]

    def point(number: int, _: Snapshot) -> Entry:
        params = points[number]
        return Entry(number, params=params, distributions={key: distributions[key] for key in params})

    return Plain(len(points), concurrency, point, replaces=False)


def check_source(config: ExperimentConfig, space: Space, slots: int) -> None:
    """Refuse a searcher that cannot run here; takes as long as a short search, and more than `source_of`.

    Args:
        config: The experiment, with its seed.
        space: Of its hyperparameters.
        slots: How many trials run at once if `max_concurrent_trials` is 0.

    Raises:
        ConfigError: A package is missing, or the searcher does not fit the space, the metrics or its options.
    """
    searcher, place = config.searcher, config.places.below("searcher")
    if searcher.class_path is not None:
        return
    source_of(config, space, slots)
    if searcher.name is None or searcher.name not in CLASSES:
        return
    check_sampler(searcher.name, searcher.options, space, _directions(config), place)
    if searcher.synchronous and searcher.stopping is not None and searcher.name != "tpe":
        place.below("synchronous").refuse(
            f"stands next to stopping, and {searcher.name} learns only from trials that have completed.",
            "the searcher tpe, which learns from the first rung of each trial; or one of the two keys.",
            "searcher.name: tpe",
        )
    if searcher.synchronous and searcher.stopping is None and not searcher.max_concurrent_trials:
        place.below("synchronous").refuse(
            "needs batches of the same size on all machines, and max_concurrent_trials is 0.",
            "max_concurrent_trials, an int >= 1.",
            "searcher.max_concurrent_trials: 16",
        )


def _directions(config: ExperimentConfig) -> tuple[str, ...]:
    return tuple("minimize" if smaller else "maximize" for smaller in config.searcher.directions)


def _new_trial(config: ExperimentConfig, space: Space, batch: int, first_rungs: Sequence[float] = ()) -> NewTrial:
    """Return the source of the parameters of trials, by a sampler or by chance.

    Args:
        config: The experiment, with its seed.
        space: Of its hyperparameters.
        batch: How many trials form a batch if it is synchronous.
        first_rungs: The length of the first rung of each bracket.
    """
    searcher, seed = config.searcher, config.reproducibility.experiment_seed
    assert seed is not None, "the stored experiment has one"
    if searcher.name is None or searcher.name not in CLASSES:
        return _random(config, space)
    return Sampled(
        searcher.name,
        space,
        seed,
        searcher.options,
        _directions(config),
        skips=searcher.duplicates == "skip",
        batch=batch if searcher.synchronous else None,
        first_rungs=first_rungs if searcher.synchronous else (),
    )


def _random(config: ExperimentConfig, space: Space) -> NewTrial:
    """Return the random trial with a number, from it and the seed alone; points that were tried are skipped."""
    seed, distributions = config.reproducibility.experiment_seed, space.distributions()
    assert seed is not None, "the stored experiment has one"
    tries = 1 if config.searcher.duplicates == "allow" else _TRIES

    def random_trial(number: int, snapshot: Snapshot) -> Entry:
        before = [dict(chain[0].params) for trial, chain in snapshot.chains.items() if trial < number]
        drawn = (space.draw_trial(seed, number, again) for again in range(tries))
        params = next((candidate for candidate in drawn if candidate not in before), space.draw_trial(seed, number))
        return Entry(number, params=params, distributions=distributions)

    return random_trial


def _halving(config: ExperimentConfig, space: Space) -> Halving:
    """Return the source of a search that compares its trials at rungs."""
    searcher = config.searcher
    rules = searcher.stopping or searcher
    length = searcher.max_length.amount if searcher.max_length else max(int(rules.max_time or 1), 1)
    assert searcher.max_trials is not None, "checked when the file is read"
    brackets = brackets_of(
        searcher.name or "",
        searcher.max_trials,
        length,
        num_rungs=searcher.num_rungs,
        divisor=rules.divisor,
        max_concurrent_trials=searcher.max_concurrent_trials,
        mode=rules.mode,
        max_rungs=rules.max_rungs,
        bracket_rungs=rules.bracket_rungs,
    )
    concurrency, first = sum(bracket.concurrent for bracket in brackets), [bracket.lengths[0] for bracket in brackets]
    new = _new_trial(config, space, concurrency, first)
    rule: Rule = "stopping" if rules.stop_once else "promoting"
    return Halving(brackets, rules.divisor, new, "synchronous" if _is_synchronous(config) else rule)


def _is_synchronous(config: ExperimentConfig) -> bool:
    return config.searcher.synchronous or config.searcher.name == "halving"
