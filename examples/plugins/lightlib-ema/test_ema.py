"""EMA on one device, compared with a plain loop."""

from __future__ import annotations

import pytest
import torch
from lightlib_ema import EMA
from torch import nn
from torch.nn import functional as F

import lightlib as L
from lightlib.callbacks import OnExceptionCheckpoint
from lightlib.errors import MisconfigurationException
from lightlib.testing import check_callback

QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3
BATCHES = list(zip(X.split(4), Y.split(4), strict=True))
DECAY = 0.8


class Net(L.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 3)
        self.validated = []

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.validated.append(self.net.weight.detach().clone())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


def fit(ema, *callbacks, module=None, ckpt_path=None, **options):
    module = module or Net()
    options = {"max_epochs": 1, "num_sanity_val_steps": 0, "enable_checkpointing": bool(callbacks), **options}
    trainer = L.Trainer(**QUIET, **options, callbacks=[ema, *callbacks])
    trainer.fit(module, BATCHES, BATCHES[:1], ckpt_path=ckpt_path)
    return trainer, module


def plain():
    """Return the weights, and the averages of the weight after each step, of a plain loop."""
    module, averages = Net(), []
    optimizer, average = module.configure_optimizers(), module.net.weight.detach().clone()
    for x, y in BATCHES:
        optimizer.zero_grad()
        F.cross_entropy(module.net(x), y).backward()
        optimizer.step()
        average = average.lerp(module.net.weight.detach(), 1 - DECAY)
        averages.append(average)
    return module.state_dict(), averages


def test_it_validates_with_the_average_and_goes_on_with_the_weights():
    weights, averages = plain()
    ema = EMA(DECAY)
    _, module = fit(ema, val_check_interval=2)
    assert [seen.tolist() for seen in module.validated] == [averages[i].tolist() for i in (1, 3, 5)]
    assert torch.equal(module.net.weight, weights["net.weight"])
    assert torch.equal(ema.average["net.weight"], averages[-1])
    with ema.averaged(module):
        assert torch.equal(module.net.weight, averages[-1])
    assert torch.equal(module.net.weight, weights["net.weight"])


def test_a_resumed_run_has_the_same_average(tmp_path):
    weights, averages = plain()
    trainer, _ = fit(EMA(DECAY), max_steps=3)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    ema = EMA(DECAY)
    _, module = fit(ema, ckpt_path=tmp_path / "one.ckpt")
    assert torch.equal(ema.average["net.weight"], averages[-1])
    assert torch.equal(module.net.weight, weights["net.weight"])


def test_a_checkpoint_after_an_error_in_a_validation_has_the_trained_weights(tmp_path):
    class Fails(Net):
        def validation_step(self, batch, batch_idx):
            raise RuntimeError("no")

    module = Fails()
    with pytest.raises(RuntimeError, match="no"):
        fit(EMA(DECAY), OnExceptionCheckpoint(tmp_path), module=module)
    saved = torch.load(tmp_path / "on_exception.ckpt")
    weights, averages = plain()
    assert torch.equal(saved["state_dict"]["net.weight"], weights["net.weight"])
    average = saved["lightlib"]["callback_tensors"]["EMA"]["average"]
    assert torch.equal(average["net.weight"], averages[-1])
    assert torch.equal(module.net.weight, weights["net.weight"])


def test_half_precision_is_averaged_in_float32():
    ema = EMA(0.999)
    _, module = fit(ema, precision="bf16-true")
    assert module.net.weight.dtype == torch.bfloat16
    assert ema.average["net.weight"].dtype == torch.float32
    assert not torch.equal(ema.average["net.weight"], Net().net.weight)


def test_a_decay_that_is_none():
    with pytest.raises(MisconfigurationException, match=r"EMA\(decay=1\.5\)"):
        EMA(1.5)


def test_it_passes_the_conformance_kit():
    check_callback(lambda: EMA(DECAY))
