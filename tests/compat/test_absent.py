"""Names of Lightning that lightlib does not provide: each error has a replacement."""

from __future__ import annotations

import re

import pytest

from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException
from lightlib.loggers import NeptuneLogger
from lightlib_lightning import absent, objects, statuses

NOT_PROVIDED = [
    (section, name)
    for section, content in statuses.sections().items()
    if isinstance(content, dict)
    for name, entry in content.items()
    if isinstance(entry, dict) and entry.get("status") in ("absent", "later")
]
STRATEGIES = [name for section, name in NOT_PROVIDED if section == "strategy names"]
CLASSES = sorted({name for section, name in NOT_PROVIDED if section != "strategy names"})


def test_there_are_some():
    assert {"xla", "single_tpu"} <= set(STRATEGIES)
    assert {"LitLogger", "XLAStrategy"} <= set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_can_be_imported_and_says_what_to_use(name):
    places = [path for path, names in objects.names().items() if name in names.split()]
    assert places
    with pytest.raises(
        MisconfigurationException, match=rf"{name} is a name of Lightning that lightlib does not provide"
    ) as error:
        absent.stand_in(name)("argument", option=1)
    assert f"Fix: {absent.INSTEAD[name]}" in str(error.value)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_name_of_a_strategy_says_what_to_use(name):
    pattern = rf"(?s)Unknown strategy '{name}'.*Expected: one of 'auto', .*Fix: Trainer\(strategy='\w+'\)"
    with pytest.raises(MisconfigurationException, match=pattern):
        Trainer(strategy=name)


def test_the_names_that_are_advised_exist():
    import lightlib.loggers
    import lightlib.profilers

    for text in (*absent.INSTEAD.values(), _neptune()):
        for name in re.findall(r"\b[A-Z]\w+(?:Logger|Profiler)\b", text):
            assert hasattr(lightlib.loggers, name) or hasattr(lightlib.profilers, name), name


def _neptune():
    with pytest.raises(MisconfigurationException, match=r"neptune\.ai has closed its service") as error:
        NeptuneLogger(project="digits")
    return str(error.value)
