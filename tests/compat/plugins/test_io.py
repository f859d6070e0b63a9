"""CheckpointIO, LayerSync and the registries of Lightning's kind, and their errors."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import pytest
import torch

import lightlib
from lightlib import checkpoint, registry
from lightlib.errors import MisconfigurationException

QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
QUIET |= {"accelerator": "cpu", "max_epochs": 1}
DATA = [torch.full((2, 1), value) for value in (1.0, 2.0, 3.0)]


class Net(lightlib.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)
        self.norm = torch.nn.BatchNorm1d(1)

    def training_step(self, batch, batch_idx):
        return self.norm(self.layer(batch)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def failing(error):
    from lightning.pytorch.plugins import TorchCheckpointIO

    class Failing(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            raise error

    return Failing()


class TestCheckpointIO:
    def test_lightnings_default_writes_lightlibs_checkpoints(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import TorchCheckpointIO

        given = TorchCheckpointIO()
        trainer = pl.Trainer(plugins=[given], **QUIET)
        trainer.fit(Net(), DATA)
        trainer.save_checkpoint("plain.ckpt")
        assert trainer.strategy.extension.store is None
        checkpoint.verify("plain.ckpt")
        assert torch.load("plain.ckpt", weights_only=True)["global_step"] == 3

    @pytest.mark.parametrize("strategy", ["auto", "ddp"])
    def test_the_strategy_has_the_plugin(self, strategy):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO
        from lightning.pytorch.strategies import DDPStrategy

        strategy = DDPStrategy() if strategy == "ddp" else strategy
        asynchronous = AsyncCheckpointIO()
        for given in (TorchCheckpointIO(), asynchronous, Mock(spec=CheckpointIO)):
            trainer = pl.Trainer(strategy=strategy, devices=1, plugins=[given], **QUIET)
            assert trainer.strategy.checkpoint_io is given
        assert type(asynchronous.checkpoint_io) is TorchCheckpointIO

    def test_a_mock_receives_the_calls_of_a_run(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import CheckpointIO

        mocked = Mock(spec=CheckpointIO)
        trainer = pl.Trainer(plugins=[mocked], **QUIET)
        trainer.fit(Net(), DATA)
        trainer.save_checkpoint("a.ckpt")
        content, path = mocked.save_checkpoint.call_args.args
        assert (content["global_step"], path) == (3, "a.ckpt")
        assert mocked.teardown.call_count == 1
        assert not Path("a.ckpt").exists()

    def test_what_it_writes_itself_has_the_label_of_the_run(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import TorchCheckpointIO

        class Noting(TorchCheckpointIO):
            """Adds nothing, so that the calls are a user's."""

        trainer = pl.Trainer(plugins=[Noting()], **QUIET)
        trainer.fit(Net(), DATA)
        trainer.save_checkpoint("noted.ckpt")
        label = lightlib.checkpoint.formats.label_of("noted.ckpt")
        assert (label.run, label.step) == (trainer.run_id, 3)

    def test_an_error_of_a_users_save_reaches_the_program_and_nothing_is_left(self):
        import lightning.pytorch as pl

        trainer = pl.Trainer(plugins=[failing(OSError("the store is full"))], **QUIET)
        trainer.fit(Net(), DATA)
        with pytest.raises(OSError, match="the store is full"):
            trainer.save_checkpoint("failed.ckpt")
        assert not Path("failed.ckpt").exists()

    def test_an_asynchronous_save_holds_the_state_of_its_moment(self):
        from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO

        class Slow(TorchCheckpointIO):
            def save_checkpoint(self, *args, **kwargs):
                time.sleep(0.05)
                super().save_checkpoint(*args, **kwargs)

        weight, writer = torch.ones(2), AsyncCheckpointIO(Slow())
        writer.save_checkpoint({"weight": weight}, "first.ckpt")
        weight.fill_(9.0)
        writer.save_checkpoint(checkpoint={"weight": weight}, path="second.ckpt")
        writer.remove_checkpoint("first.ckpt")
        assert writer.load_checkpoint("second.ckpt")["weight"].tolist() == [9.0, 9.0]
        assert not Path("first.ckpt").exists()
        writer.save_checkpoint({"weight": torch.zeros(1)}, "third.ckpt")
        writer.teardown()
        assert Path("third.ckpt").exists()

    def test_the_error_of_an_asynchronous_save_is_raised_when_the_run_ends(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import AsyncCheckpointIO

        writer = AsyncCheckpointIO(failing(OSError("the store is full")))
        saver = pl.callbacks.ModelCheckpoint(dirpath="runs", save_last=True, monitor=None)
        trainer = pl.Trainer(plugins=[writer], callbacks=[saver], **{**QUIET, "enable_checkpointing": True})
        with pytest.raises(OSError, match="the store is full"):
            trainer.fit(Net(), DATA)

    def test_a_wrapper_takes_the_default_when_it_wraps_nothing(self):
        from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO
        from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO

        inner, other = AsyncCheckpointIO(), TorchCheckpointIO()
        outer = _WrappingCheckpointIO(inner)
        outer.checkpoint_io = other
        assert inner.checkpoint_io is other
        outer.checkpoint_io = TorchCheckpointIO()
        assert inner.checkpoint_io is other

    def test_sharded_checkpoints_refuse_it_before_training(self):
        import lightning.pytorch as pl
        from lightning.pytorch.strategies import FSDPStrategy

        given = failing(OSError())
        with pytest.raises(MisconfigurationException, match="Failing is to write a checkpoint directory"):
            pl.Trainer(strategy=FSDPStrategy(state_dict_type="sharded"), devices=2, plugins=[given], **QUIET)
        trainer = pl.Trainer(plugins=[given], **QUIET)
        trainer.fit(Net(), DATA)
        with pytest.raises(MisconfigurationException, match="Failing is to write a checkpoint directory"):
            trainer.save_checkpoint("folder", format="directory")

    def test_two_of_them_are_refused(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO
        from lightning.pytorch.strategies import SingleDeviceStrategy

        with pytest.raises(MisconfigurationException, match="plugins holds two of a kind: TorchCheckpointIO and Async"):
            pl.Trainer(plugins=[TorchCheckpointIO(), AsyncCheckpointIO()], **QUIET)
        strategy = SingleDeviceStrategy(checkpoint_io=TorchCheckpointIO())
        with pytest.raises(MisconfigurationException, match="two of a kind"):
            pl.Trainer(strategy=strategy, plugins=[AsyncCheckpointIO()], **QUIET)

    def test_storage_options_need_a_plugin_that_takes_them(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import TorchCheckpointIO

        trainer = pl.Trainer(**QUIET)
        trainer.fit(Net(), DATA)
        with pytest.raises(MisconfigurationException, match="save_checkpoint got storage_options"):
            trainer.save_checkpoint("options.ckpt", storage_options={"a": 1})
        with pytest.raises(MisconfigurationException, match="TorchCheckpointIO got storage_options"):
            TorchCheckpointIO().save_checkpoint({}, "options.ckpt", storage_options={"a": 1})

    def test_a_strategy_of_lightlib_uses_it_too(self):
        from lightning.pytorch.plugins import TorchCheckpointIO

        class Noting(TorchCheckpointIO):
            ended = 0

            def teardown(self):
                self.ended += 1

        given = Noting()
        trainer = lightlib.Trainer(strategy=lightlib.strategies.SingleDeviceStrategy(), plugins=[given], **QUIET)
        trainer.fit(Net(), DATA)
        trainer.save_checkpoint("own.ckpt")
        again = lightlib.Trainer(strategy=lightlib.strategies.SingleDeviceStrategy(), plugins=[given],
                                 **{**QUIET, "max_epochs": 2})  # fmt: skip
        again.fit(Net(), DATA, ckpt_path="own.ckpt")
        assert (again.global_step, given.ended) == (6, 2)

    def test_fabric_saves_and_loads_by_it(self):
        from lightning.fabric import Fabric
        from lightning.fabric.plugins import TorchCheckpointIO

        class Noting(TorchCheckpointIO):
            calls: ClassVar[list] = []

            def save_checkpoint(self, checkpoint, path, storage_options=None):
                self.calls.append(("save", str(path)))
                super().save_checkpoint(checkpoint, path, storage_options)

            def load_checkpoint(self, path, map_location=None, weights_only=None):
                self.calls.append(("load", str(path)))
                return super().load_checkpoint(path, map_location, weights_only)

        fabric = Fabric(accelerator="cpu", devices=1, plugins=[Noting()])
        model = fabric.setup(torch.nn.Linear(1, 1))
        fabric.save("fabric.ckpt", {"model": model, "step": 4})
        state = {"model": model, "step": 0}
        fabric.load("fabric.ckpt", state)
        assert state["step"] == 4
        assert Noting.calls == [("save", "fabric.ckpt"), ("load", "fabric.ckpt")]


class TestLayerSync:
    def test_a_mock_changes_the_layers_and_excludes_sync_batchnorm(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import LayerSync

        module, mocked = Net(), Mock(spec=LayerSync)
        mocked.apply.return_value = mocked.revert.return_value = module
        pl.Trainer(plugins=[mocked], **QUIET).fit(module, DATA)
        mocked.apply.assert_called_once_with(module)
        mocked.revert.assert_called_once_with(module)
        with pytest.raises(MisconfigurationException, match="both change the layers"):
            pl.Trainer(sync_batchnorm=True, plugins=[Mock(spec=LayerSync)], **QUIET)

    def test_sync_batchnorm_at_the_same_time_is_refused(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins.layer_sync import TorchSyncBatchNorm

        with pytest.raises(MisconfigurationException, match="both change the layers"):
            pl.Trainer(sync_batchnorm=True, plugins=[TorchSyncBatchNorm()], **QUIET)

    def test_torchs_is_the_argument_of_the_trainer(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins.layer_sync import TorchSyncBatchNorm

        assert pl.Trainer(plugins=[TorchSyncBatchNorm()], **QUIET).strategy.sync_batchnorm

    def test_layers_are_put_back_with_their_values(self):
        from lightning.pytorch.plugins.layer_sync import TorchSyncBatchNorm

        module = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
        module(torch.arange(12.0).reshape(4, 3))
        before = {name: value.clone() for name, value in module.state_dict().items()}
        sync = TorchSyncBatchNorm()
        applied = sync.apply(module)
        assert isinstance(applied[0], torch.nn.SyncBatchNorm)
        reverted = sync.revert(applied).eval()
        assert {name: value.tolist() for name, value in reverted.state_dict().items()} == {
            name: value.tolist() for name, value in before.items()
        }
        inputs = torch.ones(2, 3)
        assert torch.equal(reverted(inputs), module.eval()(inputs))

    def test_a_module_that_is_replaced_is_refused(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import LayerSync

        class Replacing(LayerSync):
            def apply(self, model):
                return torch.nn.Sequential(model)

            def revert(self, model):
                return model

        with pytest.raises(MisconfigurationException, match=r"Replacing\.apply returned another module"):
            pl.Trainer(plugins=[Replacing()], **QUIET).fit(Net(), DATA)


class TestRegistries:
    def test_a_strategy_is_found_by_the_trainer_until_it_is_removed(self):
        import lightning.pytorch as pl
        from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry

        class Mine(SingleDeviceStrategy):
            strategy_name = "mine"

        Mine.register_strategies(StrategyRegistry)
        try:
            assert "mine" in StrategyRegistry
            assert "mine" in StrategyRegistry.available_strategies()
            assert "mine" in str(StrategyRegistry)
            assert type(StrategyRegistry.get("mine")) is Mine
            assert type(pl.Trainer(strategy="mine", **QUIET).strategy) is Mine
            with pytest.raises(MisconfigurationException, match=r"register\('mine', …\)"):
                StrategyRegistry.register("mine", Mine)
            StrategyRegistry.register("mine", SingleDeviceStrategy, override=True, device="cpu")
            assert type(pl.Trainer(strategy="mine", **QUIET).strategy) is SingleDeviceStrategy
        finally:
            StrategyRegistry.remove("mine")
        assert "mine" not in registry.names("strategies")
        with pytest.raises(MisconfigurationException, match="mine"):
            pl.Trainer(strategy="mine", **QUIET)
        with pytest.raises(KeyError, match="'mine' is not registered"):
            StrategyRegistry.get("mine")

    def test_register_is_also_a_decorator(self):
        from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
        from lightning.pytorch.accelerators import AcceleratorRegistry, CPUAccelerator

        assert ACCELERATOR_REGISTRY is AcceleratorRegistry

        @AcceleratorRegistry.register("other", description="An example")
        class Other(CPUAccelerator):
            pass

        try:
            assert type(AcceleratorRegistry.get("other")) is Other
            assert AcceleratorRegistry["other"]["description"] == "An example"
            assert {"cpu", "cuda", "mps", "other"} <= AcceleratorRegistry.available_accelerators()
            assert type(lightlib.Trainer(**{**QUIET, "accelerator": "other"}).accelerator) is Other
        finally:
            AcceleratorRegistry.remove("other")

    def test_what_lightlib_has_is_listed(self):
        from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry

        assert isinstance(StrategyRegistry.get("ddp_spawn"), DDPStrategy)
        assert {"ddp", "fsdp", "single_device", "deepspeed_stage_3"} <= set(StrategyRegistry)
