"""Frameworks that packages add: each is asked in turn, and the error of the first stays."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

import lightlib
from lightlib import registry, translations
from lightlib.loggers import mlflow

PLACE = "another_translation"


def attribute(module, name):
    if (module, name) == ("lightlib.loggers.mlflow", "ModuleOfAnother"):
        return lightlib.Module
    raise AttributeError(name)


@pytest.fixture
def another(monkeypatch):
    """Declare a translation, as an installed package would."""
    module = ModuleType(PLACE)
    module.attribute = attribute
    module.find_spec = lambda name: None
    module.class_path = lambda path: path.replace("another.Net", "lightlib.Module")
    monkeypatch.setitem(sys.modules, PLACE, module)
    point = EntryPoint("another", PLACE, "lightlib.translations")
    monkeypatch.setattr(registry, "entry_points", lambda group: (point,) if group == point.group else ())
    translations._translations.cache_clear()
    yield
    translations._translations.cache_clear()
    vars(mlflow).pop("ModuleOfAnother", None)


def test_a_name_is_imported_that_only_the_second_one_has(another):
    from lightlib.loggers.mlflow import (
        ModuleOfAnother,
    )  # Lightning's translation raises an ImportError for this statement

    assert ModuleOfAnother is lightlib.Module


def test_the_error_of_the_first_one_names_the_nearest(another):
    with pytest.raises(ImportError, match="Did you mean 'Trainer'"):
        from lightlib import Trainr  # noqa: F401


def test_class_paths_of_both(another):
    assert translations.class_path("another.Net") == "lightlib.Module"
    assert translations.class_path("lightning.pytorch.callbacks.Timer") == "lightlib.callbacks.Timer"
