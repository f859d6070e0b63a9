"""FSDPPrecision and DeepSpeedPrecision: numbers of plain loops, and refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lightlib
from lightlib import compat, optional
from lightlib.errors import MisconfigurationException, UnknownNameError
from tests.processes.ranks import ranks
from tests.runs.quiet import QUIET

QUIET = {**QUIET, "accelerator": "cpu", "max_epochs": 1}
BATCHES = torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(1))  # steps, ranks, samples, width


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


class Net(lightlib.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trained(rank, precision):
    """Return the weights after runs under FSDP by name, by plugins, by the strategy's argument, and by Fabric."""
    compat.install()
    from lightning.fabric import Fabric
    from lightning.pytorch import Trainer
    from lightning.pytorch.plugins import FSDPPrecision
    from lightning.pytorch.strategies import FSDPStrategy

    found = []
    for given in (
        {"strategy": "fsdp", "precision": precision},
        {"strategy": "fsdp", "plugins": [FSDPPrecision(precision)]},
        {"strategy": FSDPStrategy(precision_plugin=FSDPPrecision(precision))},
    ):
        trainer, module = Trainer(devices=2, use_distributed_sampler=False, **given, **QUIET), Net()
        trainer.fit(module, [step[rank] for step in BATCHES])
        found.append((type(trainer.precision_plugin).__name__, written(trainer.strategy.module_state())))
    fabric = Fabric(accelerator="cpu", devices=2, strategy="fsdp", plugins=[FSDPPrecision(precision)])
    fabric.launch()
    module = fabric.setup_module(network())
    optimizer = fabric.setup_optimizers(torch.optim.SGD(module.parameters(), lr=0.1))
    for step in BATCHES:
        fabric.backward(module(step[rank]).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    found.append((type(fabric.strategy.precision).__name__, written(fabric.strategy.module_state())))
    compat.uninstall()
    return found


def written(state):
    return [value.float().tolist() for value in state.values()]


def plain(precision):
    """Train on both shards of each batch in one process, with gradients that are averaged."""
    store = torch.float32 if "mixed" in precision else torch.bfloat16
    kept = network().to(store)
    for step in BATCHES:
        summed = [torch.zeros_like(parameter) for parameter in kept.parameters()]
        for samples in step:
            used = network().to(torch.bfloat16)
            used.load_state_dict(kept.state_dict())
            used(samples.bfloat16()).to(store).square().mean().backward()
            for total, parameter in zip(summed, used.parameters(), strict=True):
                total.add_(parameter.grad.to(store))
        with torch.no_grad():
            for parameter, total in zip(kept.parameters(), summed, strict=True):
                parameter.add_(total / 2, alpha=-0.1)  # as torch.optim.SGD
    return [value.detach().float() for value in kept.parameters()]


@pytest.mark.processes
@pytest.mark.parametrize(("precision", "kind"), [("bf16-mixed", "MixedPrecision"), ("bf16-true", "HalfPrecision")])
def test_fsdp_has_the_numbers_of_a_plain_loop_and_of_the_name(precision, kind):
    found, _ = ranks(2, trained, precision)  # the full state is on the first rank
    assert [name for name, _ in found] == [kind, *["FSDPPrecision"] * 3]
    weights = found[0][1]
    assert [state == weights for _, state in found] == [True] * 4
    for ours, expected, first in zip(weights, plain(precision), network().parameters(), strict=True):
        rounding = 0.0 if "mixed" in precision else 2**-9  # one of bfloat16: gloo adds up in another order
        torch.testing.assert_close(torch.tensor(ours), expected, rtol=0, atol=rounding)
        assert not torch.allclose(first, expected, rtol=0, atol=4e-3)


class TestMembers:
    def test_the_config_of_torchs_first_fsdp(self):
        from lightning.pytorch.plugins import FSDPPrecision

        for name, dtype in (("16-mixed", torch.float16), ("bf16-mixed", torch.bfloat16), ("32-true", torch.float32)):
            config = FSDPPrecision(name).mixed_precision_config
            assert (config.param_dtype, config.reduce_dtype, config.buffer_dtype) == (dtype, dtype, dtype)
        with pytest.warns(UserWarning, match="bf16-true"):
            assert FSDPPrecision("bf16-true").mixed_precision_config.param_dtype is torch.bfloat16

    def test_names_and_dtypes(self):
        from lightning.fabric.plugins import precision as of_fabric
        from lightning.pytorch.plugins import DeepSpeedPrecision, FSDPPrecision, Precision

        assert of_fabric.FSDPPrecision is FSDPPrecision
        for kind in (DeepSpeedPrecision, FSDPPrecision):
            made = kind("16-mixed")
            assert isinstance(made, Precision)
            assert (made.precision, made.name, made.scales_loss) == ("16-mixed", "16-mixed", True)
            assert kind("bf16-true").convert_module(nn.Linear(1, 1)).weight.dtype is torch.bfloat16
            with pytest.raises(UnknownNameError, match=rf"{kind.__name__} '64-true'(.|\n)*{kind.__name__}\(\"bf16"):
                kind("64-true")

    def test_the_scaler_of_the_user_is_used(self):
        from lightning.pytorch.plugins import FSDPPrecision
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        scaler = ShardedGradScaler("cpu", init_scale=8.0)
        made = FSDPPrecision("16-mixed", scaler)
        assert made.loss_scaler("cpu").grad_scaler is scaler
        assert made.scaler is scaler
        fresh = FSDPPrecision("16-mixed")
        assert fresh.loss_scaler("cpu").grad_scaler is fresh.scaler
        with pytest.raises(MisconfigurationException, match="does not scale the loss"):
            FSDPPrecision("bf16-mixed", scaler)


class TestRefused:
    @pytest.mark.parametrize("strategy", ["ddp", "single_device", "auto", "zero1"])
    @pytest.mark.parametrize(("kind", "name"), [("FSDPPrecision", "fsdp"), ("DeepSpeedPrecision", "deepspeed")])
    def test_another_strategy(self, strategy, kind, name):
        import lightning.pytorch as pl
        from lightning.pytorch import plugins

        given = getattr(plugins, kind)("bf16-mixed")
        with pytest.raises(MisconfigurationException, match=rf"{kind}\('bf16-mixed'\) was given") as raised:
            pl.Trainer(strategy=strategy, plugins=[given], **QUIET)
        assert f'Trainer(strategy="{name}"' in str(raised.value).partition("Fix:")[2]
        with pytest.raises(MisconfigurationException, match="was given with the strategy"):
            lightlib.Fabric(accelerator="cpu", strategy=strategy, plugins=[given])

    def test_each_with_the_strategy_of_the_other(self, monkeypatch):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import DeepSpeedPrecision, FSDPPrecision

        monkeypatch.setattr(optional, "is_installed", lambda module: True)
        with pytest.raises(MisconfigurationException, match="Expected: DeepSpeedStrategy"):
            pl.Trainer(strategy="fsdp", plugins=[DeepSpeedPrecision("32-true")], **QUIET)
        with pytest.raises(MisconfigurationException, match="Expected: FSDPStrategy"):
            pl.Trainer(strategy="deepspeed", plugins=[FSDPPrecision("32-true")], **QUIET)

    def test_an_override_that_deepspeed_would_leave_out(self, monkeypatch):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import DeepSpeedPrecision

        class Mine(DeepSpeedPrecision):
            def convert_input(self, data):
                return data

        monkeypatch.setattr(optional, "is_installed", lambda module: True)
        with pytest.raises(MisconfigurationException, match="Mine overrides `convert_input`"):
            pl.Trainer(strategy="deepspeed", plugins=[Mine("32-true")], **QUIET)


def test_deepspeeds_engine_gets_the_dtype_of_the_precision(monkeypatch):
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import DeepSpeedPrecision
    from lightning.pytorch.strategies import DeepSpeedStrategy

    monkeypatch.setattr(optional, "is_installed", lambda module: True)
    for name, half in (("32-true", None), ("16-mixed", "fp16"), ("bf16-mixed", "bf16"), ("bf16-true", "bf16")):
        by_name = pl.Trainer(strategy="deepspeed", precision=name, **QUIET).strategy.precision
        plugin = DeepSpeedPrecision(name)
        for given in ({"strategy": "deepspeed", "plugins": [plugin]},
                      {"strategy": DeepSpeedStrategy(precision_plugin=plugin)}):  # fmt: skip
            trainer = pl.Trainer(**given, **QUIET)
            assert trainer.precision_plugin is plugin
            made = trainer.strategy.precision
            assert (made.half, made.param_dtype, made.reduce_dtype) == (half, by_name.param_dtype, by_name.reduce_dtype)
