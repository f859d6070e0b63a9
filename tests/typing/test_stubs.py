"""The stubs in lightlib-stubs: type checkers know every name of Lightning below `lightlib`."""

from __future__ import annotations

import importlib
import re

import pytest

from lightlib_lightning.objects import names
from scripts import typing_stubs
from tests.typing import checkers

# These files define names of their own, so they have no stub: type checkers know those names only.
DEFINE_NAMES = """
    accelerators.accelerator accelerators.cpu accelerators.cuda accelerators.mps callbacks.callback
    callbacks.early_stopping callbacks.gradient_accumulation_scheduler callbacks.lr_monitor callbacks.prediction_writer
    callbacks.progress.progress_bar callbacks.timer cli fabric.fabric loggers.comet loggers.logger loggers.mlflow
    loggers.neptune loggers.tensorboard loggers.wandb profilers.advanced profilers.profiler profilers.pytorch
    profilers.simple strategies.strategy tuner.tuning
"""
WITHOUT_STUB = {f"lightlib.{name}" for name in DEFINE_NAMES.split()}


def in_lightlib():
    """The names of Lightning's modules, by their path below `lightlib`."""
    paths = {}
    for path, words in names().items():
        if path.startswith("pytorch"):
            paths["lightlib" + path.removeprefix("pytorch")] = paths[f"lightlib.{path}"] = words.split()
        elif path.startswith("fabric"):
            paths[f"lightlib.{path}"] = words.split()
    return paths


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A program that imports every name, and below each a name that no module has."""
    lines = []
    for module, words in in_lightlib().items():
        if module not in WITHOUT_STUB:
            unique = [f"{word} as {word}_{len(lines)}" for word in words]  # for mypy a name has one type
            lines += [f"from {module} import {', '.join(unique)}"] if words else [f"import {module}"]
            lines += [f"from {module} import no_such_name  # planted"]
    path = tmp_path_factory.mktemp("served") / "imports.py"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def test_the_stubs_are_those_of_the_tables():
    assert typing_stubs.is_current(), "run `python scripts/typing_stubs.py --write`"


def test_only_modules_that_define_names_have_no_stub():
    folder = typing_stubs.STUBS
    without = {name for name in in_lightlib() if not folder.joinpath(*name.split(".")[1:], "__init__.pyi").is_file()}
    assert without == WITHOUT_STUB


def test_a_name_of_a_stub_is_that_of_the_program():
    from_stub = folder_names("utilities/model_summary")
    module = importlib.import_module("lightlib.utilities.model_summary")
    assert "ModelSummary" in from_stub
    assert all(hasattr(module, name) for name in from_stub)


def folder_names(folder):
    """The names in `__all__` of a stub."""
    text = (typing_stubs.STUBS / folder / "__init__.pyi").read_text(encoding="utf-8")
    return re.findall(r"'(\w+)'", text.partition("__all__ = ")[2].partition("\n")[0])


@pytest.mark.processes
@pytest.mark.parametrize("checker", checkers.CHECKERS)
def test_checkers_know_every_name(checker, program):
    planted = [number for number, line in enumerate(program.read_text().splitlines(), 1) if line.endswith("# planted")]
    found = {line: message for _, line, message in checker([program], strict=False)}
    assert {line: message for line, message in found.items() if line not in planted} == {}
    assert sorted(found) == planted
