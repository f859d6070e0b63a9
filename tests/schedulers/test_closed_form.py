"""lightlib's schedules: their closed forms, bad arguments, and a resume in the middle."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch.optim import SGD

from lightlib.errors import MisconfigurationException
from lightlib.schedulers import (
    ConstantWarmupLR,
    CosineAnnealingWarmupLR,
    CosineRestartLR,
    FlatAnnealingLR,
    FlatAnnealingWarmupLR,
    InverseSquareRootLR,
    LinearWarmupLR,
    MultiStepWarmupLR,
    PolynomialWarmupLR,
    WarmupStableDecayLR,
)
from tests.runs.plain import Net, batches, quiet_trainer, same_weights, with_methods

BASES = (0.8, 0.2)


def rates(build, count):
    """Return the learning rates of two groups after 0, 1, …, count - 1 steps."""
    optimizer = SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": base} for base in BASES])
    schedule, found = build(optimizer), []
    for _ in range(count):
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    return found


def half_cosine(base, low, step, length):
    return low + (base - low) * (1 + math.cos(math.pi * step / length)) / 2


FORMS = {
    "cosine": (
        partial(CosineAnnealingWarmupLR, total_steps=10, warmup_steps=4, eta_min=0.1),
        lambda b, t: b * (t + 1) / 4 if t < 4 else half_cosine(b, 0.1, min(t - 4, 6), 6),
    ),
    "cosine without a warm-up": (
        partial(CosineAnnealingWarmupLR, total_steps=10),
        lambda b, t: half_cosine(b, 0, min(t, 10), 10),
    ),
    "a fraction": (
        partial(CosineAnnealingWarmupLR, total_steps=10, warmup_steps=0.2),
        lambda b, t: b * (t + 1) / 2 if t < 2 else half_cosine(b, 0, min(t - 2, 8), 8),
    ),
    "flat": (
        partial(FlatAnnealingLR, total_steps=10, eta_min=0.01),
        lambda b, t: b if t < 7 else half_cosine(b, 0.01, min(t - 7, 3), 3),
    ),
    "flat after a warm-up": (
        partial(FlatAnnealingWarmupLR, total_steps=12, warmup_steps=2, pct_start=0.5),
        lambda b, t: b * (t + 1) / 2 if t < 2 else b if t < 7 else half_cosine(b, 0, min(t - 7, 5), 5),
    ),
    "linear": (
        partial(LinearWarmupLR, total_steps=10, warmup_steps=2),
        lambda b, t: b * (t + 1) / 2 if t < 2 else b * max(0, 10 - t) / 8,
    ),
    "polynomial": (
        partial(PolynomialWarmupLR, total_steps=10, warmup_steps=2, eta_min=0.1, power=2),
        lambda b, t: b * (t + 1) / 2 if t < 2 else 0.1 + (b - 0.1) * (max(0, 10 - t) / 8) ** 2,
    ),
    "stable, linear decay": (
        partial(WarmupStableDecayLR, total_steps=12, warmup_steps=2, decay_steps=4),
        lambda b, t: b * (t + 1) / 2 if t < 2 else b if t < 8 else b * max(0, 12 - t) / 4,
    ),
    "stable, decay by the square root": (
        partial(WarmupStableDecayLR, total_steps=10, decay_steps=0.4, decay="sqrt", eta_min=0.1),
        lambda b, t: b if t < 6 else 0.1 + (b - 0.1) * (1 - math.sqrt(min(t - 6, 4) / 4)),
    ),
    "stable, cosine decay": (
        partial(WarmupStableDecayLR, total_steps=10, decay_steps=4, decay="cosine"),
        lambda b, t: b if t < 6 else half_cosine(b, 0, min(t - 6, 4), 4),
    ),
    "constant": (partial(ConstantWarmupLR, warmup_steps=3), lambda b, t: b * min(1, (t + 1) / 3)),
    "inverse square root": (
        partial(InverseSquareRootLR, warmup_steps=4),
        lambda b, t: b * min((t + 1) / 4, math.sqrt(4 / (t + 1))),
    ),
    "milestones": (
        partial(MultiStepWarmupLR, milestones=[3, 6], warmup_steps=2, gamma=0.5),
        lambda b, t: b * (t + 1) / 2 if t < 2 else b * 0.5 ** ((t >= 3) + (t >= 6)),
    ),
    "milestones as fractions": (
        partial(MultiStepWarmupLR, milestones=[0.25, 0.75], gamma=0.1, total_steps=12),
        lambda b, t: b * 0.1 ** ((t >= 3) + (t >= 9)),
    ),
    "restarts": (
        partial(CosineRestartLR, periods=[4, 6], restart_weights=[1, 0.5], eta_min=0.01),
        lambda b, t: half_cosine(b, 0.01, t, 4) if t < 4 else half_cosine(b / 2, 0.01, min(t - 4, 6), 6),
    ),
    "restarts after a warm-up": (
        partial(CosineRestartLR, periods=[4, 4], warmup_steps=2),
        lambda b, t: b * (t + 1) / 2 if t < 2 else half_cosine(b, 0, 4 if t >= 10 else (t - 2) % 4, 4),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_closed_form(name):
    build, form = FORMS[name]
    for step, found in enumerate(rates(build, 15)):
        assert found == pytest.approx([form(base, step) for base in BASES], abs=1e-12), step


@pytest.mark.filterwarnings("ignore:.*is built for")
@pytest.mark.parametrize("name", FORMS)
def test_a_resume_in_the_middle(name, tmp_path):
    def fit(max_steps, ckpt_path=None):
        configure = lambda p: ([SGD(p, lr=0.5)], [{"scheduler": FORMS[name][0], "interval": "step"}])  # noqa: E731
        module = Net(configure)
        trainer = quiet_trainer(max_epochs=-1, max_steps=max_steps)
        trainer.fit(module, batches(5), ckpt_path=ckpt_path)
        return module, trainer

    expected, _ = fit(9)
    fit(5)[1].save_checkpoint(tmp_path / "file.ckpt")
    found, trainer = fit(9, tmp_path / "file.ckpt")
    same_weights(found, expected)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(FORMS[name][1](0.5, 9))


def test_the_length_is_that_of_the_run():
    module = Net(
        lambda p: ([SGD(p, lr=0.5)], [{"scheduler": partial(LinearWarmupLR, warmup_steps=2), "interval": "step"}])
    )
    quiet_trainer(max_epochs=3, accumulate_grad_batches=2).fit(module, batches(5))
    schedule = module.lr_schedulers()
    assert schedule.total_steps == 9
    assert schedule.get_last_lr() == [0.0]


@pytest.mark.filterwarnings("ignore:LinearWarmupLR is built for 4 steps .* it continues after its end")
def test_one_that_begins_later_leaves_the_rate_until_then():
    def on_train_batch_start(self, batch, batch_idx):
        found.append(self.optimizers().param_groups[0]["lr"])

    found = []
    config = {"scheduler": partial(LinearWarmupLR, total_steps=4, warmup_steps=2), "interval": "step", "begin": 2}
    quiet_trainer().fit(with_methods(Net(lambda p: ([SGD(p, lr=0.8)], [config])), on_train_batch_start), batches(7))
    assert found == pytest.approx([0.8, 0.8, 0.8, 0.8, 0.8, 0.4, 0.0])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (partial(CosineAnnealingWarmupLR, total_steps=0), "total_steps=0"),
        (partial(CosineAnnealingWarmupLR, total_steps=1.5), r"total_steps=1\.5"),
        (partial(CosineAnnealingWarmupLR, total_steps=10, warmup_steps=10), "warmup_steps=10 and total_steps=10"),
        (partial(CosineAnnealingWarmupLR, total_steps=10, warmup_steps=-1), "warmup_steps=-1"),
        (partial(CosineAnnealingWarmupLR, total_steps=10, eta_min=-0.1), r"eta_min=-0\.1"),
        (partial(FlatAnnealingLR, total_steps=10, pct_start=1.2), r"pct_start=1\.2"),
        (partial(PolynomialWarmupLR, total_steps=10, power="2"), "power='2'"),
        (partial(WarmupStableDecayLR, total_steps=10, warmup_steps=2, decay_steps="4"), "decay_steps='4'"),
        (partial(WarmupStableDecayLR, total_steps=10, decay="cosin"), "Did you mean 'cosine'"),
        (partial(InverseSquareRootLR, warmup_steps=0), "warmup_steps=0"),
        (partial(MultiStepWarmupLR, milestones=[0.5]), "no total_steps"),
        (partial(MultiStepWarmupLR, milestones=[5, 3]), r"milestones=\[5, 3\]"),
        (partial(MultiStepWarmupLR, milestones=[5], warmup_steps=6), "warmup_steps=6"),
        (partial(CosineRestartLR, periods=[]), r"periods=\[\]"),
        (partial(CosineRestartLR, periods=[2, 3], restart_weights=[1]), r"restart_weights=\[1\]"),
        (partial(ConstantWarmupLR, warmup_steps=True), "warmup_steps=True"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(MisconfigurationException, match=message):
        build(SGD([torch.zeros(1)], lr=0.1))
