"""Communication hooks for gradients: names, functions, and errors for everything else."""

from __future__ import annotations

import pytest
import torch
from torch.futures import Future

from lightlib.errors import ArgumentTypeError, UnknownNameError
from lightlib.strategies.axes import hooks
from lightlib.strategies.axes.hooks import communication_hook, compressed_to


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
    with pytest.raises(ArgumentTypeError, match=r"comm_hook is 16 \(int\)"):
        communication_hook(16, None, None)


class Bucket:
    def __init__(self, values):
        self.values = values

    def buffer(self):
        return self.values


def test_gradients_are_rounded_and_averaged(monkeypatch):
    """With two processes that have the same gradients."""
    sent = []

    class Work:
        def __init__(self, tensor):
            self.tensor = tensor

        def get_future(self):
            future = Future()
            future.set_result([self.tensor])
            return future

    def all_reduce(tensor, group, async_op):
        sent.append((tensor.dtype, group))
        return Work(tensor.mul_(2))

    monkeypatch.setattr(hooks.distributed, "get_world_size", lambda group: 2)
    monkeypatch.setattr(hooks.distributed, "all_reduce", all_reduce)
    values = torch.tensor([1.0, 1 / 3])
    found = compressed_to(torch.bfloat16)("group", Bucket(values)).wait()
    assert found.dtype is torch.float32
    assert found.data_ptr() == values.data_ptr()
    assert found.tolist() == torch.tensor([1.0, 1 / 3]).bfloat16().tolist()
    assert sent == [(torch.bfloat16, "group")]
