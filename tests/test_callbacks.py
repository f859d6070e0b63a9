"""lightlib.callbacks: a callback can be read, and an unknown name is refused."""

from __future__ import annotations

import pytest
import torch

from lightlib import callbacks


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
