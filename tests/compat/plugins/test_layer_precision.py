"""BitsandbytesPrecision and TransformerEnginePrecision by Lightning's names."""

from __future__ import annotations

import pickle
import sys

import pytest
import torch
from torch import nn

import lightlib
from lightlib.errors import MisconfigurationException
from lightlib.precision import bitsandbytes, transformer_engine
from tests.runs.quiet import QUIET

QUIET = {**QUIET, "accelerator": "cpu", "max_epochs": 1}


class Net(lightlib.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 1)

    def training_step(self, batch, batch_idx):
        return self.head(self.body(batch).float()).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


def test_one_class_behind_all_names():
    import lightning.fabric.plugins
    from lightning.fabric.plugins.precision.bitsandbytes import BitsandbytesPrecision
    from lightning.pytorch import plugins

    assert plugins.BitsandbytesPrecision is BitsandbytesPrecision is plugins.BitsandbytesPrecisionPlugin
    assert plugins.TransformerEnginePrecision is lightning.fabric.plugins.TransformerEnginePrecision
    for name in ("BitsandbytesPrecision", "TransformerEnginePrecision"):
        assert issubclass(getattr(plugins, name), plugins.Precision)
        assert issubclass(getattr(plugins, name), getattr(lightlib.precision, name))


@pytest.mark.parametrize(("module", "arguments"), [(bitsandbytes, ("nf4",)), (transformer_engine, ())])
def test_without_the_package(monkeypatch, module, arguments):
    from lightning.pytorch import plugins

    package = module.__name__.rpartition(".")[2]
    monkeypatch.setitem(sys.modules, package, None)
    kind = plugins.BitsandbytesPrecision if arguments else plugins.TransformerEnginePrecision
    with pytest.raises(
        MisconfigurationException, match=f"{kind.__name__} needs the package {package.replace('_', '-')}"
    ):
        kind(*arguments, **({} if arguments else {"weights_dtype": torch.bfloat16}))


def test_a_subclass_may_override_and_call_super():
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import BitsandbytesPrecision

    class Shifted(BitsandbytesPrecision):
        def convert_input(self, data):
            return super().convert_input(data) + 1

    batch = torch.randn(4, 64)
    weights = []
    plain = lightlib.precision.BitsandbytesPrecision("nf4", torch.float32, {"head"})
    for precision, data in ((Shifted("nf4", torch.float32, {"head"}), [batch]), (plain, [batch + 1])):
        module = Net()
        pl.Trainer(plugins=[precision], **QUIET).fit(module, data)
        weights.append(module.head.weight.detach())
    assert torch.equal(*weights)
    copied = pickle.loads(pickle.dumps(BitsandbytesPrecision("fp4-dq")))
    assert (copied.mode, copied.dtype) == ("fp4-dq", torch.bfloat16)
