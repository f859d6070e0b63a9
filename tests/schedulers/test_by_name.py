"""get_scheduler: the values of Hugging Face's formulas, and errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch.optim import SGD

from lightlib.errors import MisconfigurationException
from lightlib.schedulers import get_scheduler

W, T = 4, 20


def rates(name, **options):
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.8)
    schedule, found = get_scheduler(name, optimizer, W, T, options), []
    for _ in range(T + 3):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def after(form):
    """The usual warm-up, then `form` of the step and of the part that has passed."""
    return lambda t: t / W if t < W else form(t, (t - W) / (T - W))


FORMS = [
    ("linear", {}, after(lambda t, p: max(0, 1 - p))),
    ("cosine", {}, after(lambda t, p: max(0, (1 + math.cos(math.pi * p)) / 2))),
    ("cosine", {"num_cycles": 1.5}, after(lambda t, p: max(0, (1 + math.cos(math.pi * 3 * p)) / 2))),
    (
        "cosine_with_restarts",
        {"num_cycles": 2},
        after(lambda t, p: 0 if p >= 1 else (1 + math.cos(math.pi * (2 * p % 1))) / 2),
    ),
    ("cosine_with_min_lr", {"min_lr": 0.2}, after(lambda t, p: 0.25 + 0.75 * (1 + math.cos(math.pi * p)) / 2)),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1}, after(lambda t, p: 0.1 + 0.9 * (1 + math.cos(math.pi * p)) / 2)),
    (
        "polynomial",
        {"lr_end": 0.08, "power": 2},
        after(lambda t, p: 0.1 if p > 1 else 0.9 * (1 - p) ** 2 + 0.1),
    ),
    ("constant", {}, lambda t: 1),
    ("constant_with_warmup", {}, after(lambda t, p: 1)),
    ("inverse_sqrt", {}, after(lambda t, p: math.sqrt(W / t))),
    ("inverse_sqrt", {"timescale": 9}, after(lambda t, p: math.sqrt(9 / (t + 9 - W)))),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 6, "min_lr_ratio": 0.1},
        lambda t: (
            0.1 + 0.9 * t / W  # it begins where it ends
            if t < W
            else 1
            if t < 14
            else 0.1 + 0.9 * (1 + math.cos(math.pi * min(1, (t - 14) / 6))) / 2
        ),
    ),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 6, "num_stable_steps": 5, "decay_type": "linear"},
        after(lambda t, p: 1 if t < 9 else max(0, 1 - (t - 9) / 6)),
    ),
]


@pytest.mark.parametrize(("name", "options", "form"), FORMS)
def test_values(name, options, form):
    assert rates(name, **options) == pytest.approx([0.8 * form(t) for t in range(T + 3)], abs=1e-12)


def test_plateau():
    schedule = get_scheduler("reduce_lr_on_plateau", SGD([torch.zeros(1)], lr=0.1), None, None, {"patience": 3})
    assert isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)
    assert schedule.patience == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cosin",), "Did you mean 'cosine'"),
        (("cosine", W), "no num_training_steps"),
        (("linear",), "no num_warmup_steps and no num_training_steps"),
        (("constant_with_warmup",), "no num_warmup_steps"),
        (("linear", W, T, {"power": 2}), "power"),
        (("cosine_with_min_lr", W, T), "either min_lr or min_lr_rate"),
        (("warmup_stable_decay", W, T), "num_decay_steps"),
        (("warmup_stable_decay", W, T, {"num_decay_steps": 4, "warmup_type": "steep"}), "'steep'"),
    ],
)
def test_errors(arguments, message):
    name, *rest = arguments
    with pytest.raises(MisconfigurationException, match=message):
        get_scheduler(name, SGD([torch.zeros(1)], lr=0.1), *rest)
