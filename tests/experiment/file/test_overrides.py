"""Overrides of an experiment file: `KEY=VALUE` with dotted keys."""

from __future__ import annotations

from typing import Any

import pytest

from lightlib.config.yaml.document import ConfigError
from lightlib.experiment.file import Length
from lightlib.experiment.file.overrides import override
from tests.experiment.given import error_of, read_fragment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=2", {"a": {"b": 2}, "l": [{"x": 1}], "dotted.key": 1}),
        ("a.c.d=[1, x]", {"a": {"b": 1, "c": {"d": [1, "x"]}}, "l": [{"x": 1}], "dotted.key": 1}),
        ("a={}", {"a": {}, "l": [{"x": 1}], "dotted.key": 1}),
        ("l.0.x=1e-3", {"a": {"b": 1}, "l": [{"x": 0.001}], "dotted.key": 1}),
        ("l.0=null", {"a": {"b": 1}, "l": [None], "dotted.key": 1}),
        ("dotted.key=a=b", {"a": {"b": 1}, "l": [{"x": 1}], "dotted.key": "a=b"}),
        ("new=", {"a": {"b": 1}, "l": [{"x": 1}], "dotted.key": 1, "new": None}),
    ],
)
def test_a_key_is_set(text: str, expected: dict[str, Any]) -> None:
    config: dict[str, Any] = {"a": {"b": 1}, "l": [{"x": 1}], "dotted.key": 1}
    override(config, text, {})
    assert config == expected


def test_overrides_win_over_the_file_in_their_order() -> None:
    space = "lr: {type: log, minval: -4, maxval: 0}"
    text = f"resources:\n  slots_per_trial: 4\nhyperparameters:\n  global_batch_size: 64\n  {space}\n"
    config = read_fragment(
        text,
        [
            "resources.slots_per_trial=2",
            "resources.slots_per_trial=8",
            "hyperparameters.lr=0.1",
            "searcher.max_length={epochs: 3}",
            "name=other",
        ],
    )
    assert (config.resources.slots_per_trial, config.hyperparameters["lr"], config.name) == (8, 0.1, "other")
    assert config.searcher.max_length == Length("epochs", 3)
    assert config.where("resources.slots_per_trial") == "--config resources.slots_per_trial=…"
    assert config.where("hyperparameters.lr.minval") == "--config hyperparameters.lr=…"
    assert config.where("hyperparameters.global_batch_size") == "mnist.yaml, line 4"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "resources.slots_per_trial=-1",
            (
                "'resources.slots_per_trial' (--config resources.slots_per_trial=…) is -1 (int).",
                "an int, at least 0.",
                "--config resources.slots_per_trial=0",
            ),
        ),
        (
            "resources.slot_per_trial=2",
            (
                (
                    "'resources.slot_per_trial' (--config resources.slot_per_trial=…) is not a key of resources."
                    " Did you mean 'slots_per_trial'?"
                ),
                (
                    "one of devices, is_single_node, max_slots, priority, resource_pool, shm_size,"
                    " slots_per_trial, weight."
                ),
                "--config resources.slots_per_trial=2",
            ),
        ),
        (
            "labels.1=b",
            (
                "'labels.1' (mnist.yaml, line 1) is no item of labels, a list of 1.",
                "an index from 0 to 0.",
                "--config 'labels=[…]' sets the list.",
            ),
        ),
        (
            "labels.0.x=b",
            (
                "'labels.0' (mnist.yaml, line 1) is no section, and --config labels.0.x=… sets a key below it.",
                "a section.",
                "--config searcher.max_trials=64",
            ),
        ),
        (
            "entrypoint.x=b",
            (
                "'entrypoint' (mnist.yaml, line 2) is no section, and --config entrypoint.x=… sets a key below it.",
                "a section.",
                "--config searcher.max_trials=64",
            ),
        ),
        (
            "labels",
            ("--config 'labels' is no setting.", "KEY=VALUE with a dotted key.", "--config searcher.max_trials=64"),
        ),
        (
            "a..b=1",
            ("--config 'a..b=1' is no setting.", "KEY=VALUE with a dotted key.", "--config searcher.max_trials=64"),
        ),
    ],
)
def test_a_wrong_override_is_refused(text: str, parts: tuple[str, str, str]) -> None:
    assert error_of("labels: [a]\n", [text]) == parts


def test_a_value_that_is_no_yaml() -> None:
    with pytest.raises(ConfigError, match="line 1, column"):
        read_fragment("", ["labels=[a"])


def test_dotted_keys_of_a_file_are_those_of_sections() -> None:
    config = read_fragment(
        "resources: {slots_per_trial: 2}\nresources.max_slots: 8\nsearcher.name: single\nsearcher.metric: loss\n"
        "hyperparameters.global_batch_size: 32\nhyperparameters.optimizer.lr: 0.1\n"
    )
    assert (config.resources.slots_per_trial, config.resources.max_slots) == (2, 8)
    assert (config.searcher.name, config.searcher.metric) == ("single", "loss")
    assert config.where("resources.max_slots") == "mnist.yaml, line 2"
    assert config.where("searcher.metric") == "mnist.yaml, line 4"
    assert config.hyperparameters == {"global_batch_size": 32, "optimizer": {"lr": 0.1}}


def test_dotted_keys_of_hyperparameters() -> None:
    config = read_fragment(
        "hyperparameters: {global_batch_size: 32, optimizer.lr: 0.1}\n", ["hyperparameters.optimizer.lr=1"]
    )
    assert config.hyperparameters == {"global_batch_size": 32, "optimizer.lr": 1}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "resources: {max_slots: 2}\nresources.max_slots: 8\n",
            (
                "'resources.max_slots' (mnist.yaml, line 2) stands here again, below its section.",
                "each key once.",
                "delete one of the two.",
            ),
        ),
        (
            "debug: true\ndebug.more: 8\n",
            (
                (
                    "'debug' (mnist.yaml, line 1) is no section, and 'debug.more' (mnist.yaml, line 2)"
                    " sets a key below it."
                ),
                "a section.",
                "--config searcher.max_trials=64",
            ),
        ),
        (
            "searcher.name: single\nsearcher.metrc: a\n",
            (
                (
                    "'searcher.metrc' (mnist.yaml, line 2) is not a key of searcher, with the name single."
                    " Did you mean 'metric'?"
                ),
                "one of max_length, metric, name, smaller_is_better, source_checkpoint_uuid, source_trial_id.",
                "searcher.metric: a",
            ),
        ),
    ],
)
def test_a_wrong_dotted_key_is_refused(text: str, parts: tuple[str, str, str]) -> None:
    assert error_of(text) == parts
