"""Loss scaling against a loop written by hand around torch.amp.GradScaler."""

import copy

import pytest
import torch
from torch import nn

from lightlib.errors import ArgumentTypeError, CheckpointError, MisconfigurationException, UnknownNameError
from lightlib.precision import LossScaler

SETTINGS = {"init_scale": 1024.0, "growth_interval": 3}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adagrad fused": lambda p: torch.optim.Adagrad(p, lr=0.01, fused=True),
}
OVERFLOWS = {2, 5}


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def batches(number=8):
    generator = torch.Generator().manual_seed(1)
    for i in range(number):
        x = torch.randn(8, 4, generator=generator)
        yield torch.full_like(x, torch.inf) if i in OVERFLOWS else x


def loss_of(model, x):
    with torch.autocast("cpu", dtype=torch.float16):
        return model(x).float().square().mean()


def assert_same(ours, plain):
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bit_identical_with_a_loop_by_hand(name, clip):
    model, plain = make_model(), make_model()
    optimizer, plain_optimizer = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](plain.parameters())
    scaler, plain_scaler = LossScaler(SETTINGS, "cpu"), torch.amp.GradScaler("cpu", **SETTINGS)
    stepped = []
    for x in batches():
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x)).backward()
        scaler.unscale(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        stepped.append(scaler.step(optimizer))
        scaler.update()

        plain_optimizer.zero_grad()
        plain_scaler.scale(loss_of(plain, x)).backward()
        plain_scaler.unscale_(plain_optimizer)
        if clip:
            nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
        plain_scaler.step(plain_optimizer)
        plain_scaler.update()
        assert_same(model, plain)
        assert scaler.state_dict() == plain_scaler.state_dict()
    assert stepped == [i not in OVERFLOWS for i in range(8)]
    assert scaler.grad_scaler.get_scale() != 1024.0


@pytest.mark.parametrize("name", ["sgd", "adamw fused"])
def test_clipping_sees_unscaled_gradients(name):
    model = make_model()
    optimizer, scaler = OPTIMIZERS[name](model.parameters()), LossScaler(SETTINGS, "cpu")
    x = next(batches())
    loss_of(model, x).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    scaler.scale(loss_of(model, x)).backward()
    scaler.unscale(optimizer)
    for p, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-2, atol=1e-3)
    scaler.unscale(optimizer)  # a second time changes nothing
    torch.testing.assert_close(next(model.parameters()).grad, expected[0], rtol=1e-2, atol=1e-3)


def test_step_unscales_when_nobody_did():
    model, plain = make_model(), make_model()
    optimizer, plain_optimizer = OPTIMIZERS["adamw fused"](model.parameters()), OPTIMIZERS["adamw"](plain.parameters())
    scaler = LossScaler(SETTINGS, "cpu")
    x = next(batches())
    scaler.scale(loss_of(model, x)).backward()
    assert scaler.step(optimizer)
    loss_of(plain, x).backward()
    plain_optimizer.step()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-4)


def test_accumulated_batches_share_one_scale():
    model, plain = make_model(), make_model()
    optimizer, plain_optimizer = OPTIMIZERS["adamw"](model.parameters()), OPTIMIZERS["adamw"](plain.parameters())
    scaler, plain_scaler = LossScaler(SETTINGS, "cpu"), torch.amp.GradScaler("cpu", **SETTINGS)
    for i, x in enumerate(batches()):
        scaler.scale(loss_of(model, x) / 2).backward()
        plain_scaler.scale(loss_of(plain, x) / 2).backward()
        if i % 2:
            scaler.unscale(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            plain_scaler.step(plain_optimizer)
            plain_scaler.update()
            plain_optimizer.zero_grad()
    assert_same(model, plain)
    assert scaler.state_dict() == plain_scaler.state_dict()


def test_several_optimizers_of_which_one_overflows():
    models, plains = [make_model(), make_model()], [make_model(), make_model()]
    optimizers = [OPTIMIZERS["adamw"](m.parameters()) for m in models]
    plain_optimizers = [OPTIMIZERS["adamw"](m.parameters()) for m in plains]
    scaler, plain_scaler = LossScaler(SETTINGS, "cpu"), torch.amp.GradScaler("cpu", **SETTINGS)
    fine = next(batches())
    for x in batches():
        for model, plain, batch in zip(models, plains, (x, fine), strict=True):
            model.zero_grad()
            plain.zero_grad()
            scaler.scale(loss_of(model, batch)).backward()
            plain_scaler.scale(loss_of(plain, batch)).backward()
        stepped = [scaler.step(optimizer) for optimizer in optimizers]
        assert stepped == [bool(x.isfinite().all()), True]
        scaler.update()
        for optimizer in plain_optimizers:
            plain_scaler.step(optimizer)
        plain_scaler.update()
    for model, plain in zip(models, plains, strict=True):
        assert_same(model, plain)
    assert scaler.state_dict() == plain_scaler.state_dict()


def test_a_new_loss_after_a_step_begins_a_new_iteration():
    """Manual optimization: one optimizer steps several times in a batch, without a call of `update`."""
    model, plain = make_model(), make_model()
    optimizer, plain_optimizer = OPTIMIZERS["adamw"](model.parameters()), OPTIMIZERS["adamw"](plain.parameters())
    scaler, plain_scaler = LossScaler(SETTINGS, "cpu"), torch.amp.GradScaler("cpu", **SETTINGS)
    for x in batches():
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x)).backward()
        scaler.step(optimizer)
        plain_optimizer.zero_grad()
        plain_scaler.scale(loss_of(plain, x)).backward()
        plain_scaler.step(plain_optimizer)
        plain_scaler.update()
    assert_same(model, plain)
    assert scaler.state_dict() == plain_scaler.state_dict()


def test_two_optimizers_after_one_backward_use_the_scale_of_that_loss():
    a, b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    first, second = torch.optim.SGD([a], lr=1.0), torch.optim.SGD([b], lr=1.0)
    scaler = LossScaler({"init_scale": 4.0, "growth_interval": 1}, "cpu")
    scaler.scale(a.sum() * 2 + b.sum() * 3).backward()
    assert scaler.step(first)
    assert scaler.step(second)
    assert (a.item(), b.item()) == (-1.0, -2.0)
    assert scaler.state_dict()["scale"] == 8.0


def test_update_without_a_step_does_nothing():
    scaler = LossScaler(SETTINGS, "cpu")
    scaler.update()
    scaler.scale(torch.ones(1))
    scaler.update()
    assert scaler.state_dict()["scale"] == 1024.0


def test_state_goes_both_ways_with_torch():
    model = make_model()
    optimizer, scaler = OPTIMIZERS["adamw"](model.parameters()), LossScaler(SETTINGS, "cpu")
    for x in batches(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x)).backward()
        scaler.step(optimizer)
    state = copy.deepcopy(scaler.state_dict())
    plain = torch.amp.GradScaler("cpu")
    plain.load_state_dict(state)
    assert plain.state_dict() == state
    other = LossScaler(None, "cpu")
    other.load_state_dict(plain.state_dict())
    assert other.state_dict() == state
    scaler.load_state_dict({**state, "scale": 2.0})
    assert scaler.state_dict()["scale"] == 2.0


@pytest.mark.parametrize("state", [{}, {"scale": 1.0}])
def test_the_state_of_something_else(state):
    with pytest.raises(CheckpointError, match=r"missing: .*growth_factor") as caught:
        LossScaler(None, "cpu").load_state_dict(state)
    assert "Fix: resume with the precision" in str(caught.value)


def test_not_enabled_is_plain_torch():
    model, scaler = make_model(), LossScaler({"enabled": False}, "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(next(batches())).mean()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale(optimizer)
    assert scaler.step(optimizer)
    assert scaler.step(optimizer)
    scaler.update()
    assert scaler.state_dict() == {}
    scaler.load_state_dict({})
    scaler.check(torch.optim.LBFGS(model.parameters()))


def test_a_scaler_of_the_user_is_driven():
    given = torch.amp.GradScaler("cpu", init_scale=2.0)
    assert LossScaler(given, "cuda").grad_scaler is given


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("init_scale", 0),
        ("init_scale", "65536"),
        ("init_scale", True),
        ("growth_factor", 1.0),
        ("backoff_factor", 1.0),
        ("backoff_factor", 0),
        ("growth_interval", 0),
        ("growth_interval", 2.0),
        ("enabled", 1),
    ],
)
def test_a_setting_that_is_out_of_range(name, value):
    with pytest.raises(MisconfigurationException) as caught:
        LossScaler({name: value}, "cpu")
    what, expected, fix = str(caught.value).split("\n")
    assert what == f"The loss scaler's setting {name!r} is {value!r}."
    assert expected.startswith("  Expected: ")
    assert fix.startswith("  Fix: ")


def test_settings_that_are_none():
    with pytest.raises(UnknownNameError, match=r"loss scaler setting 'grow_factor'. Did you mean 'growth_factor'\?"):
        LossScaler({"grow_factor": 2.0}, "cpu")
    with pytest.raises(ArgumentTypeError, match=r"settings are \[8\.0\], a list"):
        LossScaler([8.0], "cpu")


def test_lbfgs_is_refused_with_the_reason():
    model, scaler = make_model(), LossScaler(None, "cpu")
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(MisconfigurationException, match="it evaluates the loss several times within one step"):
        scaler.check(optimizer)
    scaler.scale(loss_of(model, next(batches()))).backward()
    with pytest.raises(MisconfigurationException, match="LBFGS cannot be used with precision '16-mixed'"):
        scaler.step(optimizer)


def test_a_parameter_of_two_optimizers_is_refused():
    model = make_model()
    one, other = (torch.optim.SGD(part, lr=0.1) for part in (list(model.parameters())[:2], model.parameters()))
    apart = torch.optim.SGD(list(model.parameters())[2:], lr=0.1)
    LossScaler(None, "cpu").check_together([one, apart])
    LossScaler({"enabled": False}, "cpu").check_together([one, other])
    with pytest.raises(MisconfigurationException, match=r"of shape \(.*\) is in optimizers 0 and 1, and precision"):
        LossScaler(None, "cpu").check_together([one, other])


@pytest.mark.parametrize("name", ["sgd", "adamw fused"])
def test_mistakes_have_an_error_that_says_what_to_write(name):
    model, scaler = make_model(), LossScaler(SETTINGS, "cpu")
    optimizer, x = OPTIMIZERS[name](model.parameters()), next(batches())
    with pytest.raises(MisconfigurationException, match="none of its parameters has a gradient"):
        scaler.step(optimizer)
    model(x).mean().backward()
    with pytest.raises(
        MisconfigurationException, match=r"(?s)the loss was never scaled.*self\.manual_backward\(loss\)"
    ):
        scaler.step(optimizer)
    scaler.scale(model(x).mean()).backward()
    assert scaler.step(optimizer)
    with pytest.raises(MisconfigurationException, match="is to step a second time"):
        scaler.step(optimizer)


def test_float16_parameters_are_refused():
    weight, scaler = nn.Parameter(torch.ones(2, dtype=torch.float16)), LossScaler({"init_scale": 2.0}, "cpu")
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.scale(weight.sum()).backward()
    with pytest.raises(MisconfigurationException, match="SGD has float16 parameters"):
        scaler.step(optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_more_waiting_for_the_device_than_torch(monkeypatch, name):
    """`Tensor.item` blocks; on a GPU ours may not call it more often than GradScaler does."""
    model, plain = make_model(), make_model()
    optimizer, plain_optimizer = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](plain.parameters())
    scaler, plain_scaler, x = LossScaler(SETTINGS, "cpu"), torch.amp.GradScaler("cpu", **SETTINGS), next(batches())
    scaler.scale(loss_of(model, x)).backward()
    plain_scaler.scale(loss_of(plain, x)).backward()
    item, calls = torch.Tensor.item, []
    monkeypatch.setattr("lightlib.precision.scaler._skipped_in_kernel", lambda optimizer: False)  # free of waiting: CPU
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: (calls.append(1), item(tensor))[1])
    plain_scaler.step(plain_optimizer)
    plain_scaler.update()
    by_torch = len(calls)
    scaler.step(optimizer)
    scaler.update()
    assert len(calls) - by_torch == by_torch
