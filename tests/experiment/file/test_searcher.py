"""The section `searcher`: the keys of each searcher, metrics, lengths, and names of other versions."""

from __future__ import annotations

from typing import Any

import pytest

from lightlib.experiment.file import Length, Stopping
from lightlib.report import LightlibWarning
from tests.experiment.given import error_of, read_fragment

ASHA = "name: adaptive_asha, metric: loss, max_trials: 16, max_length: {epochs: 4}"
HALVING = "name: async_halving, metric: loss, max_trials: 16, max_length: {epochs: 4}, num_rungs: 3"
NAMES = "single, random, grid, adaptive_asha, async_halving, halving, tpe, gp, cmaes, qmc, nsga2, nsga3"


def searcher(written: str) -> str:
    return f"# a comment\nsearcher: {{{written}}}\n"


@pytest.mark.parametrize(
    ("key", "default", "written", "expected", "wrong", "start"),
    [
        ("smaller_is_better", True, "false", False, "yess", "true or false."),
        ("max_concurrent_trials", 16, "0", 0, "-1", "an int, at least 0."),
        ("mode", "standard", "conservative", "conservative", "fast", "one of aggressive, standard, conservative."),
        ("divisor", 4, "2.5", 2.5, "1", "a number greater than 1."),
        ("max_rungs", 5, "3", 3, "0", "an int, at least 1."),
        ("bracket_rungs", (), "[3, 2]", (3, 2), "[0]", "an int, at least 1."),
        ("stop_once", True, "false", False, "0", "true or false."),
        ("source_trial_id", None, "3", 3, "-1", "the id of a trial: an int, or EXPERIMENT/TRIAL."),
        ("source_trial_id", None, "mnist/7", "mnist/7", "1.5", "the id of a trial: an int, or EXPERIMENT/TRIAL."),
        ("source_checkpoint_uuid", None, "ab-12", "ab-12", "12", "text; a number needs quotes."),
        ("synchronous", False, "true", True, "1", "true or false."),
        ("duplicates", None, "skip", "skip", "drop", "one of skip, allow."),
    ],
)
def test_a_key_of_adaptive_asha(key: str, default: Any, written: str, expected: Any, wrong: str, start: str) -> None:
    assert getattr(read_fragment(searcher(ASHA)).searcher, key) == default
    found = getattr(read_fragment(searcher(f"{ASHA}, {key}: {written}")).searcher, key)
    assert (found, type(found)) == (expected, type(expected))
    what, expected_text, fix = error_of(searcher(f"{ASHA}, {key}: {wrong}"))
    assert what.startswith(f"'searcher.{key}")
    assert "(mnist.yaml, line 2) is " in what
    assert expected_text == start
    assert fix.startswith(f"searcher.{key}")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{batches: 937}", Length("batches", 937)),
        ("{records: 60000}", Length("records", 60000)),
        ("{epochs: 2}", Length("epochs", 2)),
        ("64", Length("units", 64)),
    ],
)
def test_lengths(written: str, expected: Length) -> None:
    text = searcher(f"name: random, metric: loss, max_trials: 2, max_length: {written}")
    assert read_fragment(text).searcher.max_length == expected


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        (
            "{batches: 0}",
            (
                "'searcher.max_length.batches' (mnist.yaml, line 2) is 0 (int).",
                "an int, at least 1.",
                "searcher.max_length.batches: 1",
            ),
        ),
        (
            "0",
            (
                "'searcher.max_length' (mnist.yaml, line 2) is 0 (int).",
                "an int, at least 1.",
                "searcher.max_length: 1",
            ),
        ),
        (
            "{batch: 3}",
            (
                (
                    "'searcher.max_length.batch' (mnist.yaml, line 2) is not a key of max_length, a length."
                    " Did you mean 'batches'?"
                ),
                "one of batches, epochs, records.",
                "searcher.max_length.batches: 3",
            ),
        ),
        (
            "{batches: 3, epochs: 1}",
            (
                "'searcher.max_length' (mnist.yaml, line 2) has 2 units: batches, epochs.",
                "a mapping of one unit, batches, records or epochs, to an int.",
                "searcher.max_length: {batches: 3}",
            ),
        ),
        (
            "3 epochs",
            (
                "'searcher.max_length' (mnist.yaml, line 2) is '3 epochs' (str).",
                "a mapping of one unit, batches, records or epochs, to an int.",
                "searcher.max_length: {batches: 100}",
            ),
        ),
    ],
)
def test_wrong_lengths_are_refused(written: str, parts: tuple[str, str, str]) -> None:
    assert error_of(searcher(f"name: single, metric: loss, max_length: {written}")) == parts


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        (
            "metric: loss",
            ("'searcher' (mnist.yaml, line 2) has no 'name'.", f"one of {NAMES}.", "searcher.name: adaptive_asha"),
        ),
        (
            "name: single",
            (
                "'searcher' (mnist.yaml, line 2) has no 'metric', which single needs.",
                "the keys metric.",
                "searcher.metric: val_loss",
            ),
        ),
        (
            "name: random, metric: loss",
            (
                "'searcher' (mnist.yaml, line 2) has no 'max_trials', which random needs.",
                "the keys metric, max_trials.",
                "searcher.max_trials: 16",
            ),
        ),
        (
            "name: async_halving, metric: loss, max_trials: 3, max_length: {epochs: 1}",
            (
                "'searcher' (mnist.yaml, line 2) has no 'num_rungs', which async_halving needs.",
                "the keys metric, max_trials, num_rungs.",
                "searcher.num_rungs: 4",
            ),
        ),
        (
            "name: adaptive_asha, metric: loss, max_trials: 3",
            (
                "'searcher' (mnist.yaml, line 2) has no length, which adaptive_asha divides into rungs.",
                "max_length, or time_metric and max_time.",
                "searcher.max_length: {epochs: 16}",
            ),
        ),
        (
            "name: tpe, metric: loss, max_trials: 3, stopping: {}",
            (
                "'searcher' (mnist.yaml, line 2) has no length, which stopping divides into rungs.",
                "max_length, or time_metric and max_time.",
                "searcher.max_length: {epochs: 16}",
            ),
        ),
        (
            "name: tpe, metric: [a, b], max_trials: 3, max_length: 9, stopping: {}",
            (
                "'searcher.metric' (mnist.yaml, line 2) is ['a', 'b'] (list).",
                "one metric: rungs compare trials by one number.",
                "searcher.metric: a, or searcher.name: nsga2",
            ),
        ),
        (
            "name: tpe, metric: a, max_trials: 3, max_length: 9, stopping: {time_metric: t, max_time: 3}",
            (
                "'searcher.max_length' (mnist.yaml, line 2) stands next to max_time: both are the length of a trial.",
                "max_length, or time_metric and max_time.",
                "delete max_length, or both time_metric and max_time.",
            ),
        ),
        (
            f"{ASHA}, time_metric: epochs, max_time: 3",
            (
                "'searcher.max_length' (mnist.yaml, line 2) stands next to max_time: both are the length of a trial.",
                "max_length, or time_metric and max_time.",
                "delete max_length, or both time_metric and max_time.",
            ),
        ),
        (
            f"{HALVING}, time_metric: epochs",
            (
                "'searcher.time_metric' (mnist.yaml, line 2) stands without max_time.",
                "both time_metric and max_time, or neither.",
                "searcher.max_time: 16",
            ),
        ),
        (
            f"{HALVING}, max_time: 4",
            (
                "'searcher.max_time' (mnist.yaml, line 2) stands without time_metric.",
                "both time_metric and max_time, or neither.",
                "searcher.time_metric: epochs",
            ),
        ),
        (
            "name: grid, metric: loss, max_trials: 4",
            (
                (
                    "'searcher.max_trials' (mnist.yaml, line 2) is not a key of grid: it belongs to"
                    " random, adaptive_asha,"
                    " async_halving, halving, tpe, gp, cmaes, qmc, nsga2, nsga3."
                ),
                (
                    "one of name, metric, smaller_is_better, source_trial_id, source_checkpoint_uuid, max_length,"
                    " max_concurrent_trials, synchronous, duplicates."
                ),
                "delete it, or write searcher.name: random",
            ),
        ),
        (
            "name: random, metric: loss, max_trials: 4, init_args: {}",
            (
                "'searcher.init_args' (mnist.yaml, line 2) is not a key of random: it belongs to a class_path.",
                (
                    "one of name, metric, smaller_is_better, source_trial_id, source_checkpoint_uuid, max_length,"
                    " max_concurrent_trials, synchronous, duplicates, max_trials."
                ),
                "delete it, or write searcher.name: a class_path",
            ),
        ),
        (
            f"{HALVING}, divsor: 4",
            (
                (
                    "'searcher.divsor' (mnist.yaml, line 2) is not a key of searcher, with the name async_halving."
                    " Did you mean 'divisor'?"
                ),
                (
                    "one of divisor, duplicates, max_concurrent_trials, max_length, max_time, max_trials, metric, name,"
                    " num_rungs, smaller_is_better, source_checkpoint_uuid, source_trial_id, stop_once, synchronous,"
                    " time_metric."
                ),
                "searcher.divisor: 4",
            ),
        ),
        (
            "name: randon, metric: loss",
            ("'searcher.name' (mnist.yaml, line 2) is 'randon' (str).", f"one of {NAMES}.", "searcher.name: random"),
        ),
        (
            "name: single, metric: loss, source_trial_id: 1, source_checkpoint_uuid: a",
            (
                (
                    "'searcher.source_checkpoint_uuid' (mnist.yaml, line 2) stands next to"
                    " source_trial_id: both name the"
                    " first weights of every trial."
                ),
                "at most one of source_trial_id and source_checkpoint_uuid.",
                "delete one of the two.",
            ),
        ),
        (
            "name: custom, metric: loss",
            (
                "'searcher.name' (mnist.yaml, line 2) is 'custom', which has no name here.",
                "the class of your searcher.",
                "searcher: {class_path: package.module.MySearcher, metric: val_loss}",
            ),
        ),
        (
            "name: random, class_path: a.B, metric: loss",
            (
                "'searcher.class_path' (mnist.yaml, line 2) has a `name` and a `class_path`.",
                "one of the two.",
                "delete `name`.",
            ),
        ),
    ],
)
def test_a_wrong_searcher_is_refused(written: str, parts: tuple[str, str, str]) -> None:
    assert error_of(searcher(written)) == parts


@pytest.mark.parametrize(
    ("name", "what", "instead"),
    [
        ("adaptive", "a searcher of old versions of Determined", "adaptive_asha"),
        ("adaptive_simple", "a searcher of old versions of Determined", "adaptive_asha"),
        ("sync_halving", "a searcher of old versions of Determined", "halving"),
        ("pbt", "population-based training, which lightlib does not have", "adaptive_asha"),
        ("population", "population-based training, which lightlib does not have", "adaptive_asha"),
    ],
)
def test_searchers_that_do_not_exist_name_what_to_use(name: str, what: str, instead: str) -> None:
    found, expected, fix = error_of(searcher(f"name: {name}, metric: loss, budget: 3"))
    assert found == f"'searcher.name' (mnist.yaml, line 2) is {name!r}, {what}."
    assert (expected, fix) == (f"one of {NAMES}.", f"searcher.name: {instead}")


def test_the_misspelt_mode_is_accepted_with_a_warning() -> None:
    with pytest.warns(LightlibWarning, match=r"^'searcher.mode' \(mnist.yaml, line 2\) is spelt 'agressive'") as caught:
        config = read_fragment(searcher(f"{ASHA}, mode: agressive"))
    assert config.searcher.mode == "aggressive"
    assert str(caught[0].message).endswith("write searcher.mode: aggressive.")


def test_several_metrics() -> None:
    written = "name: nsga2, metric: [loss, seconds], smaller_is_better: [true, false], max_trials: 8"
    found = read_fragment(searcher(written)).searcher
    assert (found.metric, found.smaller_is_better) == (("loss", "seconds"), (True, False))
    assert (found.metrics, found.directions) == (("loss", "seconds"), (True, False))


def test_one_direction_is_that_of_every_metric() -> None:
    found = read_fragment(searcher("name: random, metric: [a, b], smaller_is_better: false, max_trials: 8")).searcher
    assert (found.metrics, found.directions) == (("a", "b"), (False, False))
    assert read_fragment("").searcher.metrics == ("val_loss",)


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        (
            "name: tpe, metric: [a, b], smaller_is_better: [true], max_trials: 8",
            (
                "'searcher.smaller_is_better' (mnist.yaml, line 2) is [True] (list).",
                "as many values as metrics: 2.",
                "searcher.smaller_is_better: [true, true]",
            ),
        ),
        (
            "name: tpe, metric: a, smaller_is_better: [true, false], max_trials: 8",
            (
                "'searcher.smaller_is_better' (mnist.yaml, line 2) is [True, False] (list).",
                "as many values as metrics: 1.",
                "searcher.smaller_is_better: [true]",
            ),
        ),
        (
            "name: adaptive_asha, metric: [a, b], max_trials: 8, max_length: 3",
            (
                "'searcher.metric' (mnist.yaml, line 2) is ['a', 'b'] (list).",
                "one metric: rungs compare trials by one number.",
                "searcher.metric: a, or searcher.name: nsga2",
            ),
        ),
        (
            "name: cmaes, metric: [a, b], max_trials: 8",
            (
                "'searcher.metric' (mnist.yaml, line 2) is ['a', 'b'] (list).",
                "one metric: cmaes compares trials by one number.",
                "searcher.metric: a, or searcher.name: nsga2",
            ),
        ),
    ],
)
def test_wrong_metrics_are_refused(written: str, parts: tuple[str, str, str]) -> None:
    assert error_of(searcher(written)) == parts


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "qmc", "nsga2", "nsga3"])
def test_samplers(name: str) -> None:
    more = "options: {seed: 1}, stopping: {mode: aggressive}"
    found = read_fragment(searcher(f"name: {name}, metric: loss, max_trials: 8, max_length: 9, {more}")).searcher
    assert (found.name, found.options, found.stopping) == (name, {"seed": 1}, Stopping(mode="aggressive"))


def test_the_brackets_of_a_sampler() -> None:
    found = read_fragment(
        searcher("name: tpe, metric: loss, max_trials: 8, max_length: 9, stopping: {}")
    ).searcher.stopping
    assert found is not None
    assert (found.mode, found.divisor, found.max_rungs, found.bracket_rungs, found.stop_once) == (
        "standard",
        4,
        5,
        (),
        True,
    )
    what, expected, fix = error_of(searcher("name: tpe, metric: loss, max_trials: 8, stopping: {max_time: 8}"))
    assert what == "'searcher.stopping.max_time' (mnist.yaml, line 2) stands without time_metric."
    assert (expected, fix) == ("both time_metric and max_time, or neither.", "searcher.stopping.time_metric: epochs")


def test_synchronous_halving() -> None:
    found = read_fragment(searcher("name: halving, metric: a, max_trials: 9, num_rungs: 2, max_length: 9")).searcher
    assert (found.num_rungs, found.divisor, found.max_length) == (2, 4, Length("units", 9))


def test_a_searcher_of_your_own() -> None:
    written = "class_path: a.b.Mine, init_args: {x: 1}, metric: loss, max_concurrent_trials: 3"
    found = read_fragment(searcher(written)).searcher
    assert (found.name, found.class_path, found.init_args) == (None, "a.b.Mine", {"x": 1})
    assert found.max_concurrent_trials == 3
    what, _, _ = error_of(searcher(f"{written}, max_trials: 3"))
    assert "is not a key of a searcher of your own: it belongs to random" in what
    what, _, fix = error_of(searcher(f"{written}, max_rungs: 3"))
    assert what.startswith(
        "'searcher.max_rungs' (mnist.yaml, line 2) is not a key of a searcher of your own: it belong"
    )
    assert fix == "delete it, or write searcher.name: adaptive_asha"
