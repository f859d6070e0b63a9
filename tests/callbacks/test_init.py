"""lightlib.callbacks: every name is there, and imported only when it is used."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import lightlib.callbacks
from lightlib import callbacks
from tests.processes import programs


@pytest.mark.parametrize("name", callbacks.__all__)
def test_every_name(name):
    assert getattr(callbacks, name).__name__ == name
    assert name in dir(callbacks)


def test_one_list():
    source = ast.parse(Path(lightlib.callbacks.__file__).read_text(encoding="utf-8"))
    typed = {alias.name for node in ast.walk(source) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed - {"annotations", "TYPE_CHECKING", "lazy"} == set(callbacks.__all__)


class Mine(callbacks.Callback):
    def __init__(self, size, rate=0.1, password="", *rest):
        self.size, self.rate, self.password = size, rate, password


class Broken:
    def __eq__(self, other):
        raise RuntimeError("no truth value")

    __hash__ = None


@pytest.mark.parametrize(
    ("callback", "text"),
    [
        (callbacks.EarlyStopping("val_loss", patience=5), "EarlyStopping(monitor='val_loss', patience=5)"),
        (
            callbacks.ModelCheckpoint(monitor="val_loss", save_top_k=3, every_n_epochs=2),
            "ModelCheckpoint(monitor='val_loss', save_top_k=3, every_n_epochs=2)",
        ),
        (callbacks.LambdaCallback(on_fit_start=print), "LambdaCallback()"),
        (callbacks.Callback(), "Callback()"),
        (Mine(1), "Mine(size=1)"),
        (Mine(torch.zeros(2), 0.2, "abc"), "Mine(size=tensor([0., 0.]), rate=0.2, password='***')"),
        (Mine(object(), Broken()), "Mine(size=<object>, rate=<Broken>)"),
        (Mine("x" * 200), f"Mine(size='{'x' * 79}…)"),
    ],
)
def test_what_it_is_can_be_read(callback, text):
    assert repr(callback) == text


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'ModelCheckpiont'"):
        _ = callbacks.ModelCheckpiont


@pytest.mark.processes
def test_nothing_is_imported_before_it_is_used():
    code = "import sys, lightlib.callbacks; print([n for n in sys.modules if n.startswith('lightlib.callbacks.')])"
    done = programs.interpreter("-c", code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
