"""Lightning's precision classes are settings of Precision."""

import dataclasses

import pytest
import torch

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision, named


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        (MixedPrecision(), "16-mixed"),
        (MixedPrecision("16-mixed", "cuda"), "16-mixed"),
        (MixedPrecision("bf16-mixed", device="cpu"), "bf16-mixed"),
        (HalfPrecision(), "16-true"),
        (HalfPrecision("bf16-true"), "bf16-true"),
        (DoublePrecision(), "64-true"),
    ],
)
def test_a_preset_is_the_named_one(preset, name):
    assert isinstance(preset, Precision)
    assert dataclasses.asdict(preset) == dataclasses.asdict(named(name))


def test_a_scaler_is_taken():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert MixedPrecision("16-mixed", scaler=scaler).loss_scaler("cpu").grad_scaler is scaler
    assert MixedPrecision(scaler={"init_scale": 8.0}).loss_scaler("cpu").grad_scaler.get_scale() == 8.0


def test_what_is_refused():
    with pytest.raises(MisconfigurationException, match="precision 'bf16-mixed', which does not scale the loss"):
        MixedPrecision("bf16-mixed", scaler={"init_scale": 8.0})
    with pytest.raises(
        UnknownNameError, match=r"(?s)Unknown precision of MixedPrecision '16-true'.*one of '16-mixed', 'bf16-mixed'"
    ):
        MixedPrecision("16-true")
    with pytest.raises(
        UnknownNameError, match=r"Unknown precision of HalfPrecision 'bf16'\. Did you mean 'bf16-true'\?"
    ):
        HalfPrecision("bf16")
    with pytest.raises(ArgumentTypeError, match=r"HalfPrecision\(precision=16 \(int\)\)"):
        HalfPrecision(16)
    with pytest.raises(ArgumentTypeError, match=r"MixedPrecision\(device=0 \(int\)\)"):
        MixedPrecision(device=0)
