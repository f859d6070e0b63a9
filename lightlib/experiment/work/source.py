"""Sources of trials, as the section `searcher` of an experiment file describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.snapshot import Snapshot
from lightlib.experiment.search.plain import Plain
from lightlib.experiment.space import Space

if TYPE_CHECKING:
    from lightlib.experiment.file import ExperimentConfig

_TRIES = 100  # to find a point that was not tried before
PLAIN = ("single", "random", "grid")


def source_of(config: ExperimentConfig, space: Space, slots: int) -> Plain:
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
    if searcher.name not in PLAIN or searcher.stopping is not None:
        place.below("name").refuse(
            f"is {searcher.name or searcher.class_path!r}{' with `stopping`' if searcher.stopping else ''}, which does "
            "not run trials yet.",
            f"one of {', '.join(PLAIN)} in this version.",
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
    concurrency = searcher.max_concurrent_trials or max(slots, 1)
    distributions = space.distributions()
    if searcher.name == "random":
        seed = config.reproducibility.experiment_seed
        assert seed is not None, "the stored experiment has one"
        assert searcher.max_trials is not None, "checked when the file is read"
        tries = 1 if searcher.duplicates == "allow" else _TRIES

        def random_trial(number: int, snapshot: Snapshot) -> Entry:
            before = [dict(chain[0].params) for trial, chain in snapshot.chains.items() if trial < number]
            drawn = (space.draw_trial(seed, number, again) for again in range(tries))
            params = next((one for one in drawn if one not in before), space.draw_trial(seed, number))
            return Entry(number, params=params, distributions=distributions)

        return Plain(searcher.max_trials, concurrency, random_trial)
    points = space.grid_numbers() if searcher.name == "grid" else [{}]

    def point(number: int, _: Snapshot) -> Entry:
        params = points[number]
        return Entry(number, params=params, distributions={key: distributions[key] for key in params})

    return Plain(len(points), concurrency, point, replaces=False)
