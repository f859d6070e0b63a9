"""LambdaCallback: hooks given as functions."""

from __future__ import annotations

import pytest

from lightlib.callbacks import Callback, LambdaCallback
from lightlib.core.module.overrides import overrides
from lightlib.core.run.hooks import HOOKS
from lightlib.errors import ArgumentTypeError


@pytest.mark.parametrize("name", [*HOOKS, "state_dict", "load_state_dict"])
def test_every_hook(name):
    got = []
    callback = LambdaCallback(**{name: lambda *arguments: got.append(arguments)})
    getattr(callback, name)("trainer", "module")
    assert got == [("trainer", "module")]
    assert overrides(callback, Callback, name)


def test_the_others_are_not_defined():
    callback = LambdaCallback(on_fit_start=lambda trainer, pl_module: None)
    assert [name for name in HOOKS if overrides(callback, Callback, name)] == ["on_fit_start"]


def test_unknown_name():
    with pytest.raises(ArgumentTypeError, match=r"no hook has this name. Did you mean 'on_train_start'") as caught:
        LambdaCallback(on_trian_start=print)
    assert isinstance(caught.value, TypeError)


def test_not_callable():
    with pytest.raises(ArgumentTypeError, match=r"LambdaCallback\(on_fit_start=3\)"):
        LambdaCallback(on_fit_start=3)
