"""Strategies and precisions of Lightning's kind: classes, members, cost, refusals."""

from __future__ import annotations

import json
import sys
from importlib import resources

import pytest
import torch

import lightlib
from lightlib.errors import MisconfigurationException
from lightlib_lightning.plugins import registries
from tests.processes.ranks import ranks

LIST = json.loads(resources.files("lightlib_lightning").joinpath("statuses.json").read_text("utf-8"))
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
QUIET |= {"accelerator": "cpu", "max_epochs": 1}


class Net(lightlib.Module):
    """One weight; its gradient is the mean of a batch."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.layer.weight)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


DATA = [torch.full((2, 1), value) for value in (1.0, 2.0, 3.0)]


class TestClasses:
    def test_strategies_by_name_are_instances_of_lightnings_classes(self):
        import lightning.pytorch as pl
        from lightning.pytorch import strategies

        for name, kind in (("ddp", "DDPStrategy"), ("single_device", "SingleDeviceStrategy"), ("fsdp", "FSDPStrategy")):
            devices = 1 if name == "single_device" else 2
            strategy = pl.Trainer(strategy=name, devices=devices, **QUIET).strategy
            assert isinstance(strategy, getattr(strategies, kind))
            assert isinstance(strategy, strategies.Strategy)
            assert isinstance(strategy, getattr(lightlib.strategies, kind))

    def test_fabric_and_trainer_have_the_same_classes(self):
        import lightning.fabric.plugins
        import lightning.fabric.strategies
        import lightning.pytorch.plugins
        import lightning.pytorch.strategies

        for name in ("DDPStrategy", "FSDPStrategy", "SingleDeviceStrategy", "Strategy", "ParallelStrategy"):
            assert getattr(lightning.fabric.strategies, name) is getattr(lightning.pytorch.strategies, name)
        for name in ("CheckpointIO", "TorchCheckpointIO", "Precision", "MixedPrecision", "ClusterEnvironment"):
            assert getattr(lightning.fabric.plugins, name) is getattr(lightning.pytorch.plugins, name)

    @pytest.mark.parametrize(
        ("name", "kind"),
        [("32-true", "Precision"), ("bf16-mixed", "MixedPrecision"), ("16-mixed", "MixedPrecision"),
         ("64-true", "DoublePrecision"), ("bf16-true", "HalfPrecision")],
    )  # fmt: skip
    def test_precisions_by_name_are_instances_of_lightnings_classes(self, name, kind):
        import lightning.pytorch as pl
        from lightning.pytorch import plugins

        trainer = pl.Trainer(precision=name, **QUIET)
        assert isinstance(trainer.precision_plugin, getattr(plugins, kind))
        assert trainer.precision_plugin is trainer.strategy.precision_plugin
        assert (trainer.precision, trainer.precision_plugin.precision) == (name, name)

    @pytest.mark.filterwarnings("ignore:.*computes in float16 on the CPU")
    def test_the_loss_scaler_of_a_run_is_that_of_the_plugin(self):
        import lightning.pytorch as pl

        trainer = pl.Trainer(precision="16-mixed", **QUIET)
        trainer.fit(Net(), DATA)
        module, plain = Net(), torch.amp.GradScaler("cpu")
        optimizer = module.configure_optimizers()
        for batch in DATA:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = module.layer(batch).mean()
            plain.scale(loss).backward()
            plain.step(optimizer)
            plain.update()
        assert trainer.precision_plugin.scaler.state_dict() == plain.state_dict()

    def test_members_are_all_there(self):
        import lightning.pytorch as pl

        trainer = pl.Trainer(**QUIET)
        trainer.fit(Net(), DATA)
        for section, owner in (("Strategy members", trainer.strategy), ("Precision members", trainer.precision_plugin)):
            assert [name for name in LIST[section] if not hasattr(owner, name)] == []

    @pytest.mark.processes  # the environment looks for a free port
    def test_the_constructor_takes_what_the_trainer_takes(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import DoublePrecision
        from lightning.pytorch.plugins.environments import LightningEnvironment
        from lightning.pytorch.strategies import DDPStrategy

        environment, precision = LightningEnvironment(), DoublePrecision()
        strategy = DDPStrategy(
            accelerator=lightlib.accelerators.CPUAccelerator(),
            parallel_devices=[torch.device("cpu")] * 2,
            cluster_environment=environment,
            precision_plugin=precision,
            find_unused_parameters=True,
        )
        trainer = pl.Trainer(strategy=strategy, **{**QUIET, "accelerator": "auto"})
        assert (trainer.num_devices, trainer.precision_plugin, trainer.precision) == (2, precision, "64-true")
        assert trainer.strategy.cluster_environment is environment

    @pytest.mark.parametrize(
        ("strategy", "arguments", "named"),
        [("accelerator", {"accelerator": "cpu"}, "accelerator is given twice"),
         ("precision_plugin", {"precision": "32-true"}, "Two precisions were given")],
    )  # fmt: skip
    def test_an_argument_that_both_set_is_refused(self, strategy, arguments, named):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import DoublePrecision
        from lightning.pytorch.strategies import SingleDeviceStrategy

        value = {"accelerator": lightlib.accelerators.CPUAccelerator(), "precision_plugin": DoublePrecision()}[strategy]
        with pytest.raises(MisconfigurationException, match=named):
            pl.Trainer(
                strategy=SingleDeviceStrategy(**{strategy: value}), **{**QUIET, "accelerator": "auto", **arguments}
            )


class TestCost:
    def test_without_an_override_a_fit_makes_lightlibs_calls(self):
        import lightning.pytorch as pl

        def calls(strategy, precision):
            trainer = pl.Trainer(strategy=strategy, precision=precision, **{**QUIET, "max_epochs": 20})
            made = []

            def note(frame, event, argument):
                if event == "call" and trainer.global_step >= 5:
                    made.append(
                        frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name
                    )

            sys.setprofile(note)
            try:
                trainer.fit(Net(), DATA)
            finally:
                sys.setprofile(None)
            end = len(made) - 1 - made[::-1].index("train_batch")  # the teardown may differ
            return made[:end]

        plain = calls(lightlib.strategies.SingleDeviceStrategy(), lightlib.precision.Precision.named("32-true"))
        from lightning.pytorch.plugins import Precision
        from lightning.pytorch.strategies import SingleDeviceStrategy

        assert calls(SingleDeviceStrategy(), Precision()) == plain


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "instead"),
        [("setup_optimizers", "configure_optimizers"), ("configure_ddp", "DDPStrategy"),
         ("_configure_launcher", "start_method"), ("set_world_ranks", "ClusterEnvironment"),
         ("world_size", "ClusterEnvironment"), ("lightning_restore_optimizer", "resume")],
    )  # fmt: skip
    def test_an_override_that_is_never_called_is_an_error_before_training(self, name, instead):
        import lightning.pytorch as pl
        from lightning.pytorch.strategies import DDPStrategy

        kind = type("Mine", (DDPStrategy,), {name: lambda self, *args: None})
        with pytest.raises(MisconfigurationException, match=f"Mine overrides `{name}`") as raised:
            pl.Trainer(strategy=kind(), **QUIET)
        assert instead in str(raised.value).partition("Fix:")[2]

    def test_a_precision_needs_one_of_lightnings_strategies(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import Precision

        class Mine(Precision):
            def pre_backward(self, tensor, module):
                return super().pre_backward(tensor, module)

        trainer = pl.Trainer(strategy=lightlib.strategies.SingleDeviceStrategy(), plugins=[Mine()], **QUIET)
        with pytest.raises(MisconfigurationException, match="Mine overrides `pre_backward`"):
            trainer.fit(Net(), DATA)

    def test_a_module_that_is_replaced_is_refused(self):
        import lightning.pytorch as pl
        from lightning.pytorch.plugins import Precision
        from lightning.pytorch.strategies import SingleDeviceStrategy

        class Replacing(Precision):
            def convert_module(self, module):
                return torch.nn.Sequential(module)

        class Wrapping(SingleDeviceStrategy):
            def setup(self, trainer):
                self.model = torch.nn.Sequential(self.model)
                super().setup(trainer)

        with pytest.raises(MisconfigurationException, match=r"Replacing\.convert_module returned another module"):
            pl.Trainer(plugins=[Replacing()], **QUIET).fit(Net(), DATA)
        with pytest.raises(MisconfigurationException, match=r"Wrapping\.model returned another module"):
            pl.Trainer(strategy=Wrapping(), **QUIET).fit(Net(), DATA)

    def test_the_base_classes_are_abstract(self):
        from lightning.pytorch.strategies import ParallelStrategy, Strategy

        for kind in (Strategy, ParallelStrategy):
            with pytest.raises(TypeError, match=f"{kind.__name__} is abstract"):
                kind()

    def test_options_of_the_first_fsdp(self):
        from lightning.pytorch.strategies import FSDPStrategy

        with pytest.warns(UserWarning, match="limit_all_gathers have no effect"):
            FSDPStrategy(limit_all_gathers=True)
        with pytest.raises(MisconfigurationException, match="FSDPStrategy got param_init_fn"):
            FSDPStrategy(param_init_fn=print)

    def test_model_averaging_needs_its_state(self):
        from lightning.pytorch.strategies import DDPStrategy

        with pytest.raises(MisconfigurationException, match="model_averaging_period=4"):
            DDPStrategy(model_averaging_period=4)


def _fsdp(rank):
    from lightlib import compat

    compat.install()
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import FSDPStrategy

    class Halved(FSDPStrategy):
        def backward(self, closure_loss, optimizer, *args, **kwargs):
            return super().backward(closure_loss / 2, optimizer, *args, **kwargs)

        def optimizer_step(self, optimizer, closure, model=None, **kwargs):
            self.steps = getattr(self, "steps", 0) + 1
            return super().optimizer_step(optimizer, closure, model, **kwargs)

    class Wide(lightlib.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4, bias=False)
            torch.nn.init.ones_(self.layer.weight)

        def training_step(self, batch, batch_idx):
            return self.layer(batch).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    strategy, module = Halved(), Wide()
    trainer = pl.Trainer(strategy=strategy, devices=2, gradient_clip_val=0.25, use_distributed_sampler=False, **QUIET)
    trainer.fit(module, [torch.full((1, 4), float(rank + 1 + i)) for i in range(3)])
    weight = strategy.lightning_module_state_dict()
    return strategy.steps, weight["layer.weight"].tolist() if rank == 0 else None


@pytest.mark.processes
def test_a_subclass_of_fsdp_computes_as_a_plain_loop():
    weight = torch.ones(4, 4)
    for i in range(3):
        gradients = [torch.full((4, 4), (rank + 1 + i) / 4 / 2) for rank in range(2)]
        gradient = sum(gradients) / 2
        weight -= 0.5 * gradient * min(1.0, 0.25 / (gradient.norm().item() + 1e-6))
    found = ranks(2, _fsdp)
    assert [steps for steps, _ in found] == [3, 3]
    assert torch.allclose(torch.tensor(found[0][1]), weight, atol=1e-6)


def test_rows_of_the_registry_name_class_and_arguments_as_in_lightning():
    rows = registries.STRATEGY_REGISTRY
    nvme = {"remote_device": "nvme", "offload_params_device": "nvme", "offload_optimizer_device": "nvme"}
    both = {"stage": 3, "offload_optimizer": True, "offload_parameters": True}
    for name, kind, options in (
        ("ddp", "DDPStrategy", {"start_method": "popen"}),
        ("ddp_spawn", "DDPStrategy", {"start_method": "spawn"}),
        ("ddp_notebook", "DDPStrategy", {"start_method": "fork"}),
        (
            "ddp_fork_find_unused_parameters_true",
            "DDPStrategy",
            {"find_unused_parameters": True, "start_method": "fork"},
        ),
        (
            "ddp_find_unused_parameters_false",
            "DDPStrategy",
            {"find_unused_parameters": False, "start_method": "popen"},
        ),
        ("deepspeed", "DeepSpeedStrategy", {}),
        ("deepspeed_stage_2_offload", "DeepSpeedStrategy", {"stage": 2, "offload_optimizer": True}),
        ("deepspeed_stage_3_offload_nvme", "DeepSpeedStrategy", {**both, **nvme}),
        ("fsdp_cpu_offload", "FSDPStrategy", {"cpu_offload": True}),
        ("single_device", "SingleDeviceStrategy", {}),
    ):
        assert (rows[name]["strategy"].__name__, rows[name]["init_params"]) == (kind, options)
        assert rows[name]["strategy_name"] == name
    made = rows.get("ddp_spawn_find_unused_parameters_true")
    assert (type(made).__name__, made.launcher) == ("DDPStrategy", "spawn")
    assert {"zero1", "tensor"} <= set(rows)
