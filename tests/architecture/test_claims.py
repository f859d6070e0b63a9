"""Statements about lightlib in pages and messages: absent features, and replacements of old names."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from functools import cache

import pytest
import torch

import lightlib
from lightlib.callbacks.callback import Callback
from lightlib.core import run_views
from lightlib.core.run import hooks
from lightlib.core.setup import arguments
from tests.architecture.rules import ROOT

PUBLIC = (
    "lightlib", "lightlib.callbacks", "lightlib.loggers", "lightlib.strategies", "lightlib.tuner", "lightlib.data",
    "lightlib.samplers", "lightlib.evaluation", "lightlib.optim", "lightlib.schedulers", "lightlib.profilers",
)  # fmt: skip
SHORT_FORMS = {"lr": "learning rate", "avg": "average", "grad": "gradient", "auto": ""}
VALUES = {"num_processes": 1, "process_position": 1, "weights_save_path": "weights"}  # default: True


def served_by(words: str) -> list[str]:
    """Return the public names that share two words with `words`, or the only one that it has."""
    wanted = stems(words)
    return sorted(name for name in public_names() if len(wanted & stems(name)) >= min(2, len(wanted)))


@cache
def public_names() -> frozenset[str]:
    """Names that a user imports, and those of the classes that a user derives from."""
    names = {name for module in PUBLIC for name in dir(importlib.import_module(module)) if not name.startswith("_")}
    owners = (lightlib.Trainer, lightlib.Module, lightlib.DataModule, Callback)
    names |= {name for owner in owners for name in dir(owner) if not name.startswith("_")}
    return frozenset(names | set(inspect.signature(lightlib.Trainer.__init__).parameters)) - set(dir(torch.nn.Module))


@cache
def stems(words: str) -> frozenset[str]:
    """The first five letters of each word of a phrase, of ``CamelCase`` or of ``snake_case``."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", re.sub(r"(?<=[A-Z])s\b", "", words))
    long = " ".join(SHORT_FORMS.get(part.lower(), part.lower()) for part in parts).split()
    return frozenset(word.removesuffix("s")[:5] for word in long if len(word) > 2)


def names_in(code: str) -> set[str]:
    """Return the classes that a line of Python calls."""
    calls = (node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
    return {node.id for node in calls if isinstance(node, ast.Name)}


class TestWhatIsNotAvailable:
    @pytest.mark.parametrize(
        ("words", "name"),
        [
            ("learning-rate finders", "LearningRateFinder"),
            ("batch-size finders", "BatchSizeFinder"),
            ("weight averaging", "WeightAveraging"),
            ("stochastic_weight_avg", "StochasticWeightAveraging"),
            ("auto_lr_find", "LearningRateFinder"),
            ("auto_scale_batch_size", "BatchSizeFinder"),
            ("prepare_data_per_node", "prepare_data_per_node"),
            ("DDPs", "DDPStrategy"),
        ],
    )
    def test_the_search_finds_what_is_there(self, words, name):
        assert name in served_by(words)

    def test_the_readme(self):
        (stated,) = re.findall(r"Not available: ([^.]*)\.", (ROOT / "README.md").read_text("utf-8"))
        found = {words: served_by(words) for words in re.split(r", | and ", stated)}
        assert not any(found.values()), f"the README lists these as not available: {found}"

    def test_no_page_has_a_table_without_rows(self):
        for page in (ROOT / "docs").rglob("*.md"):
            empty = re.findall(r"^\|[-| ]+\|\n(?!\|)", page.read_text("utf-8"), re.MULTILINE)
            assert not empty, f"{page.name}: a table has no rows"


class TestArgumentsOfLightning1:
    def test_those_without_a_replacement(self):
        without = {name for name, (place, _) in arguments.REMOVED.items() if place == "no replacement"}
        assert without == {"ipus", "move_metrics_to_cpu"}
        assert {name: served_by(name) for name in without} == {name: [] for name in without}

    @pytest.mark.parametrize("name", sorted({**arguments.REMOVED, **arguments.ELSEWHERE}))
    def test_the_fix_is_python_that_runs(self, name):
        place, fix = {**arguments.REMOVED, **arguments.ELSEWHERE}[name]
        code = fix.replace("{value}", repr(VALUES.get(name, True))).rstrip(".")
        calls = re.findall(r"Trainer\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", code)
        if place == "no replacement":
            assert fix.startswith("leave it out: ")
        for call in calls:
            if "…" in call or "gpu" in call:
                assert names_in(call.replace("…", "None")) == {"Trainer"}
                continue
            known = {one: importlib.import_module(one) for one in PUBLIC}
            classes = {one: next(getattr(m, one) for m in known.values() if hasattr(m, one)) for one in names_in(call)}
            eval(call, {}, classes)

    @pytest.mark.parametrize("text", [place for place, _ in arguments.REMOVED.values()])
    def test_the_places_exist(self, text):
        for name in re.findall(r"`([^`]+)`", text):
            known = {*inspect.signature(lightlib.Trainer.__init__).parameters, "fit", "dirpath", "ckpt_path"}
            known |= {"prepare_data", "lightlib.tuner.Tuner"}
            assert name in known


@pytest.mark.parametrize("text", [*run_views._INTERNALS.values(), *run_views._REMOVED.values()])
def test_what_the_trainer_names_in_place_of_lightnings_attributes_exists(text):
    trainer = lightlib.Trainer(accelerator="cpu", logger=False)
    owners = {"trainer": trainer, "module": lightlib.Module, "lightlib": importlib.import_module("lightlib.tuner")}
    for path in re.findall(r"`([^`]+)`", text):
        owner, *_, name = re.sub(r"\(.*", "", path).split(".")
        assert hasattr(owners[owner], name)


@pytest.mark.parametrize(("old", "new"), sorted(hooks._REMOVED.items()))
def test_hooks_that_lightning_removed_have_the_replacement_that_is_named(old, new):
    owners = (lightlib.Module, Callback)
    assert any(hasattr(owner, new) for owner in owners)
    assert not any(hasattr(owner, old) for owner in owners)
