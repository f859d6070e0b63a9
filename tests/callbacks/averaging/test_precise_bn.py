"""PreciseBN: torch's update_bn on training batches, before validations and at the end; resumed runs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

import lightlib as L
from lightlib.callbacks import PreciseBN
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.callbacks.averaging.plain_loop import QUIET, Net, data, plain
from tests.runs.saves_at import SavesAt

STEPS = 6


class Sees(Net):
    """Notes the first layer and the running mean at each validation."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_validation_start(self):
        noted = self.net[0].weight, self.net[0].bias, self.net[1].running_mean
        self.seen.append([tensor.detach().clone() for tensor in noted])


def fit(*callbacks, module=None, validates=True, ckpt_path=None, **options):
    module = module or Sees()
    options = {"max_epochs": 3, **options} | ({} if validates else {"limit_val_batches": 0})
    trainer = L.Trainer(**QUIET, enable_checkpointing=False, callbacks=list(callbacks), **options)
    trainer.fit(module, data(STEPS), data(3, 2) if validates else None, ckpt_path=ckpt_path)
    return module


def exact(module, batches=STEPS):
    """Return the statistics of torch's `update_bn` for the weights of a module."""
    other = Net()
    other.load_state_dict(module.state_dict())
    other.train()
    update_bn(list(data(STEPS))[:batches], other.net)
    return other.net[1]


def same_statistics(found, wanted):
    names = ("running_mean", "running_var", "num_batches_tracked")
    return all(torch.equal(getattr(found, name), getattr(wanted, name)) for name in names)


@pytest.mark.parametrize("batches", [None, 200, 2])
def test_statistics_are_the_means_over_the_batches(batches):
    module = fit(PreciseBN(batches))
    assert same_statistics(module.net[1], exact(module, min(batches or STEPS, STEPS)))


def test_the_running_mean_is_the_mean_of_the_layers_input():
    module = fit(PreciseBN(None), max_epochs=1)
    inputs = torch.cat([module.net[0](x) for x, _ in data(STEPS)]).detach()
    torch.testing.assert_close(module.net[1].running_mean, inputs.mean(0), rtol=1e-5, atol=1e-6)


def test_validations_have_them_and_the_training_is_the_same():
    module, (trained, _, _) = fit(PreciseBN()), plain(lambda step, epoch: False, epochs=3)
    for name, value in trained.state_dict().items():
        assert torch.equal(value, module.net.state_dict()[name]) or "running" in name or "num_batches" in name
    assert len(module.seen) == 3
    for weight, bias, mean in module.seen:
        inputs = torch.cat([F.linear(x, weight, bias) for x, _ in data(STEPS)])
        torch.testing.assert_close(mean, inputs.mean(0), rtol=1e-5, atol=1e-6)


def test_every_second_epoch_and_at_the_end():
    steps = []

    class Counts(PreciseBN):
        def _update(self, trainer, pl_module):
            steps.append(trainer.global_step)
            super()._update(trainer, pl_module)

    fit(Counts(every_n_epochs=2), max_epochs=5)
    assert steps == [12, 24, 30]
    steps.clear()
    fit(Counts(), validates=False, max_epochs=-1, max_steps=8)
    assert steps == [6, 8]


@pytest.mark.parametrize("step", [3, 6, 9, 12, 18])
def test_a_resumed_run_has_the_same_bits(step, tmp_path):
    unbroken = fit(PreciseBN(4), SavesAt(tmp_path / "a.ckpt", step))
    module = fit(PreciseBN(4), ckpt_path=tmp_path / "a.ckpt")
    found, wanted = module.state_dict(), unbroken.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())
    assert not module.validated or module.validated == unbroken.validated[-len(module.validated) :]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: PreciseBN(0), MisconfigurationException, "num_batches=0"),
        (lambda: PreciseBN("all"), ArgumentTypeError, "num_batches='all'"),
        (lambda: PreciseBN(every_n_epochs=0), MisconfigurationException, "every_n_epochs=0"),
    ],
)
def test_wrong_arguments(make, error, text):
    with pytest.raises(error, match=text):
        make()
