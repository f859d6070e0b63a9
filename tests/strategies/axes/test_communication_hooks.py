"""Communication hooks for gradients: names, functions, and errors for everything else."""

from __future__ import annotations

import pytest

from lightlib.errors import ArgumentTypeError, UnknownNameError
from lightlib.strategies.axes.communication_hooks import communication_hook


def test_a_function_goes_through_with_its_state():
    hook = lambda state, bucket: None  # noqa: E731
    assert communication_hook(hook, "state", "group") == ("state", hook)


def test_names():
    state, hook = communication_hook("bf16", None, "group")
    assert state == "group"
    assert callable(hook)
    state, hook = communication_hook("powersgd", None, None)
    assert (type(state).__name__, hook.__name__) == ("PowerSGDState", "powerSGD_hook")
    assert communication_hook("powersgd", "mine", None)[0] == "mine"


def test_neither():
    with pytest.raises(UnknownNameError, match=r"'bf15'.*\n.*bf16"):
        communication_hook("bf15", None, None)
    with pytest.raises(ArgumentTypeError, match=r"DDPStrategy\(comm_hook=16 \(int\)\)"):
        communication_hook(16, None, None)
