"""Static scales, hysteresis and the least scale, against sequences worked out by hand."""

from __future__ import annotations

import pytest
import torch

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.precision import LossScaler, MixedPrecision

OVER, FINE = True, False


def scales(scaler, overflows):
    """The scale after each step; an overflow is an infinite gradient."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    found = []
    for over in overflows:
        optimizer.zero_grad()
        scaler.scale((weight * (torch.inf if over else 1.0)).sum()).backward()
        assert scaler.step(optimizer) is not over
        scaler.update()
        found.append(scaler.grad_scaler.get_scale())
    return found


@pytest.mark.parametrize(
    ("settings", "overflows", "expected"),
    [
        # the first overflow is forgiven, every one after it shrinks the scale
        ({"hysteresis": 2}, [OVER, OVER, OVER, FINE, OVER], [64, 32, 16, 16, 8]),
        # ... until the scale has grown: then one is forgiven again
        (
            {"hysteresis": 2, "growth_interval": 2},
            [OVER, OVER, FINE, FINE, OVER, OVER],
            [64, 32, 32, 64, 64, 32],
        ),
        # a step that was taken does not refill, unless requested
        ({"hysteresis": 2}, [OVER, FINE, OVER, FINE, OVER], [64, 64, 32, 32, 16]),
        ({"hysteresis": 2, "consecutive_hysteresis": True}, [OVER, FINE, OVER, OVER, OVER], [64, 64, 64, 32, 16]),
        ({"hysteresis": 3}, [OVER, OVER, OVER, OVER], [64, 64, 32, 16]),
        # an overflow that is forgiven begins the count of good steps again, as any
        ({"hysteresis": 2, "growth_interval": 3}, [FINE, FINE, OVER, FINE, FINE, FINE], [64, 64, 64, 64, 64, 128]),
        ({"min_scale": 16.0}, [OVER, OVER, OVER, OVER], [32, 16, 16, 16]),
        ({"min_scale": 24.0}, [OVER, OVER, OVER], [32, 24, 24]),
        ({"hysteresis": 2, "min_scale": 32.0, "growth_interval": 1}, [OVER, OVER, OVER, FINE], [64, 32, 32, 64]),
    ],
)
def test_sequences(settings, overflows, expected):
    assert scales(LossScaler({"init_scale": 64.0, **settings}, "cpu"), overflows) == expected


@pytest.mark.parametrize("settings", [None, "dynamic", {}, {"hysteresis": 1}, {"initial_scale_power": 16}])
def test_these_are_torchs_defaults(settings):
    overflows = [FINE, OVER, FINE, OVER]
    plain = torch.amp.GradScaler("cpu")
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    expected = []
    for over in overflows:
        optimizer.zero_grad()
        plain.scale((weight * (torch.inf if over else 1.0)).sum()).backward()
        plain.step(optimizer)
        plain.update()
        expected.append(plain.get_scale())
    scaler = LossScaler(settings, "cpu")
    assert scales(scaler, overflows) == expected == [65536.0, 32768.0, 32768.0, 16384.0]
    assert scaler.state_dict() == plain.state_dict()


def test_a_number_is_a_static_scale():
    scaler = LossScaler(1024, "cpu")
    assert scales(scaler, [FINE, OVER, OVER, FINE]) == [1024.0] * 4
    other = LossScaler(512.0, "cpu")
    other.load_state_dict(scaler.state_dict())  # the scale is a setting, and the new one counts
    assert scales(other, [FINE, OVER]) == [512.0, 512.0]


def test_a_power_of_two():
    assert scales(LossScaler({"initial_scale_power": 4}, "cpu"), [FINE, OVER]) == [16.0, 8.0]


@pytest.mark.parametrize("consecutive", [False, True])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_restored_scaler_goes_on_as_one_that_was_not_saved(at, consecutive):
    settings = {"init_scale": 64.0, "hysteresis": 3, "growth_interval": 2, "consecutive_hysteresis": consecutive}
    overflows = [OVER, FINE, OVER, OVER, OVER, FINE, FINE, OVER]
    unbroken, first, second = (LossScaler(settings, "cpu") for _ in range(3))
    expected = scales(unbroken, overflows)
    assert len(set(expected)) > 2 or consecutive
    before = scales(first, overflows[:at])
    second.load_state_dict(first.state_dict())
    assert before + scales(second, overflows[at:]) == expected
    assert second.state_dict() == unbroken.state_dict()


def test_states_without_and_with_more_hysteresis():
    plain = LossScaler({"init_scale": 64.0}, "cpu")
    scales(plain, [OVER])
    patient = LossScaler({"init_scale": 64.0, "hysteresis": 2}, "cpu")
    patient.load_state_dict(plain.state_dict())
    assert scales(patient, [OVER, OVER]) == [32.0, 16.0]
    fresh = LossScaler({"init_scale": 64.0, "hysteresis": 9}, "cpu")
    patient.load_state_dict(fresh.state_dict())
    assert scales(patient, [OVER, OVER]) == [64.0, 32.0]
    plain.load_state_dict(fresh.state_dict())  # one without hysteresis leaves it out
    assert scales(plain, [OVER]) == [32.0]


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ("static", UnknownNameError, r"(?s)Unknown loss scaler 'static'.*scaler=1024\.0"),
        (0, MisconfigurationException, r"(?s)'init_scale' is 0\..*a number > 0"),
        (True, ArgumentTypeError, r"settings are True, a bool"),
        ({"hysteresis": 0}, MisconfigurationException, r"(?s)'hysteresis' is 0\..*an int >= 1"),
        ({"hysteresis": 1.5}, MisconfigurationException, r"'hysteresis' is 1\.5"),
        ({"min_scale": -1.0}, MisconfigurationException, r"(?s)'min_scale' is -1\.0.*a number > 0"),
        ({"min_loss_scale": 1.0}, UnknownNameError, r"loss scaler setting 'min_loss_scale'.*'min_scale'"),
        ({"initial_scale_power": 500}, MisconfigurationException, r"from -126 to 127"),
        (
            {"initial_scale_power": 4, "init_scale": 8.0},
            MisconfigurationException,
            r"(?s)init_scale=8\.0 and initial_scale_power=4.*one of the two.*'init_scale': 16\.0",
        ),
        ({"min_scale": 8.0, "init_scale": 4.0}, MisconfigurationException, r"min_scale=8\.0, and its first scale is 4"),
        ({"consecutive_hysteresis": True}, MisconfigurationException, r"consecutive_hysteresis=True without hyst"),
    ],
)
def test_what_is_refused(settings, error, text):
    for make in (lambda: LossScaler(settings, "cpu"), lambda: MixedPrecision("16-mixed", scaler=settings)):
        with pytest.raises(error, match=text):
            make()
