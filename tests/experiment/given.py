"""Experiment files for tests: a fragment is completed to a file in which its own lines come first."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from lightlib.config.yaml.document import ConfigError
from lightlib.experiment.file import ExperimentConfig, read

FILE = "mnist.yaml"
REST = {
    "entrypoint": "entrypoint: model:Classifier\n",
    "hyperparameters": "hyperparameters: {global_batch_size: 64}\n",
    "searcher": "searcher: {name: single, metric: val_loss}\n",
}


def complete(fragment: str) -> str:
    """Return a file that begins with a fragment and has the keys that every experiment needs."""
    missing = (
        line
        for key, line in REST.items()
        if not any(one.startswith((f"{key}:", f"{key}.")) for one in fragment.split("\n"))
    )
    return fragment.rstrip("\n") + "\n" + "".join(missing)


def read_text(text: str, overrides: Iterable[str] = ()) -> ExperimentConfig:
    """Read a file with this text."""
    Path(FILE).write_text(text, encoding="utf-8")
    return read(FILE, overrides)


def read_fragment(fragment: str, overrides: Iterable[str] = ()) -> ExperimentConfig:
    """Read a fragment, completed to a file."""
    return read_text(complete(fragment), overrides)


def error_of(fragment: str, overrides: Iterable[str] = ()) -> tuple[str, str, str]:
    """Return the three parts of the error for a fragment."""
    with pytest.raises(ConfigError) as caught:
        read_fragment(fragment, overrides)
    what, found, rest = str(caught.value).partition("\n  Expected: ")
    expected, fixed, fix = rest.partition("\n  Fix: ")
    assert found, f"the error has no expectation: {caught.value}"
    assert fixed, f"the error has no fix: {caught.value}"
    return what, expected, fix
