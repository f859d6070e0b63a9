"""Autocast's cache of cast weights: torch's guarantees, and lightlib's additions."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightlib.precision import Precision, named
from lightlib.precision import precision as precision_file

UNCACHED = Precision("bf16-mixed", torch.float32, torch.bfloat16, torch.float32, cache=False)


def gradients(before, make_context):
    """The gradients of a step that did `before` in the same context."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(3, 4)
    with make_context():
        before(model, x)
        loss = model(x).float().square().sum()
    loss.backward()
    return [p.grad for p in model.parameters()]


def without_gradients(model, x):
    with torch.no_grad():
        model(x)


def in_inference_mode(model, x):
    with torch.inference_mode():
        model(x)


def with_other_gradients(model, x):
    model(x).float().sum().backward()


def checkpointed(model, x):
    checkpoint(model, x, use_reentrant=False).float().sum().backward()


def while_frozen(model, x):
    model.requires_grad_(False)
    model(x)
    model.requires_grad_(True)


@pytest.mark.skipif(not precision_file._cache_keeps_gradients(), reason="a torch that loses gradients, see below")
@pytest.mark.parametrize(
    "before", [without_gradients, in_inference_mode, with_other_gradients, checkpointed, while_frozen]
)
def test_plain_torch_keeps_the_gradients_with_the_cache(before):
    cached = gradients(before, lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True))
    uncached = gradients(before, lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False))
    for ours, right in zip(cached, uncached, strict=True):
        assert torch.equal(ours, right)


@pytest.mark.parametrize(
    "before", [without_gradients, in_inference_mode, with_other_gradients, checkpointed, while_frozen]
)
def test_a_step_has_its_gradients_whatever_came_before(before):
    ours = gradients(before, named("bf16-mixed").step_context("cpu"))
    right = gradients(before, UNCACHED.step_context("cpu"))
    assert all(torch.equal(a, b) for a, b in zip(ours, right, strict=True))


def test_the_cache_is_off_in_a_torch_that_loses_gradients(monkeypatch):
    monkeypatch.setattr(precision_file, "_cache_keeps_gradients", lambda: False)
    with named("bf16-mixed").step_context("cpu")():
        assert not torch.is_autocast_cache_enabled()


def test_the_question_to_torch_leaves_nothing_behind():
    ask = precision_file._cache_keeps_gradients.__wrapped__
    with torch.no_grad():
        assert isinstance(ask(), bool)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        ask()
    assert not torch.is_autocast_enabled("cpu")


def test_the_cache_can_be_switched_off():
    with UNCACHED.step_context("cpu")():
        assert not torch.is_autocast_cache_enabled()


def second_output(make_context, prepare=lambda optimizer: None):
    """Return a model's output after an optimizer step in the same context, as in manual optimization."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    prepare(optimizer)
    with make_context():
        model(x).float().sum().backward()
        optimizer.step()
        return model(x)


def test_plain_torch_computes_with_old_weights_after_a_step_in_the_context():
    cached = second_output(lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True))
    uncached = second_output(lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False))
    assert not torch.allclose(cached, uncached)


def test_forget_casts_after_a_step():
    precision = named("bf16-mixed")
    ours = second_output(precision.step_context("cpu"), precision.forget_casts_after)
    assert torch.equal(ours, second_output(UNCACHED.step_context("cpu")))


def test_forget_casts_can_be_undone_and_is_not_always_needed():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    handle = named("bf16-mixed").forget_casts_after(optimizer)
    handle.remove()
    assert named("32-true").forget_casts_after(optimizer) is None
    assert named("bf16-true").forget_casts_after(optimizer) is None
    assert UNCACHED.forget_casts_after(optimizer) is None
