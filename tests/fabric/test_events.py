"""Callbacks and loggers of a Fabric."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers import CSVLogger, FabricLogger
from tests.runs.modules import Holds
from tests.runs.plain import Net, Rows, calling, with_methods


class ForFabric(FabricLogger):
    name, version = "for fabric", 0

    def __init__(self):
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params, *args, **kwargs):
        pass


class Hooks:
    def __init__(self):
        self.calls = []
        self.constant = 3

    def on_some(self, a, b=2):
        self.calls.append(("some", a, b))

    def on_any(self, *args, **kwargs):
        self.calls.append(("any", args, kwargs))

    def on_needs(self, a, *, must):
        self.calls.append(("needs", a, must))


def fabric_of(*callbacks, **arguments):
    return L.Fabric(accelerator="cpu", devices=1, callbacks=list(callbacks), **arguments)


class TestCallbacks:
    def test_hooks_get_the_arguments_that_they_name(self):
        hooks = Hooks()
        fabric = fabric_of(hooks, object())
        fabric.call("on_some", a=1, c=3)
        fabric.call("on_some", 5, b=6)
        fabric.call("on_any", 1, x=2)
        fabric.call("on_absent", 1)
        assert hooks.calls == [("some", 1, 2), ("some", 5, 6), ("any", (1,), {"x": 2})]

    def test_an_argument_that_is_not_passed(self):
        first, second = Hooks(), Hooks()
        fabric = fabric_of(first, second)
        with pytest.raises(MisconfigurationException, match=r"Hooks.on_needs needs the argument 'must'") as raised:
            fabric.call("on_needs", 1, other=2)
        assert "\n  Fix: fabric.call('on_needs', must=…), or remove it from the hook." in str(raised.value)
        assert first.calls == []
        fabric.call("on_needs", 1, must=2)
        assert second.calls == [("needs", 1, 2)]

    def test_what_cannot_be_called_is_skipped(self):
        with pytest.warns(UserWarning, match=r"Hooks.constant is 3 \(int\), which cannot be called"):
            fabric_of(Hooks()).call("constant")

    def test_a_module_of_lightlib_is_a_callback(self):
        def on_train_epoch_end(self):
            self.ended += 1

        fabric, module = fabric_of(), with_methods(Net, on_train_epoch_end, ended=0)
        fabric.setup(module)
        fabric.call("on_train_epoch_end", epoch=1)
        assert module.ended == 1


class TestLoggers:
    def test_a_module_of_lightlib_logs_at_once(self):
        def training_step(self, batch, batch_idx):
            self.log("loss", torch.tensor(batch_idx / 2), sync_dist=True)
            self.log_dict({"bar": 1}, logger=False, prog_bar=True)

        rows = Rows()
        model = fabric_of(loggers=rows).setup(with_methods(Net, training_step))
        model.training_step(None, 1)
        assert rows.rows == [(None, {"loss": 0.5})]

    def test_values_go_to_all_loggers(self):
        one, other = Rows(), Rows()
        fabric = fabric_of(loggers=[one, other])
        assert fabric.logger is one
        assert fabric.loggers == [one, other]
        fabric.log("loss", torch.tensor(0.5, requires_grad=True), step=3)
        fabric.log_dict({"a": 1, "b": torch.tensor([2])})
        assert one.rows == other.rows == [(3, {"loss": 0.5}), (None, {"a": 1, "b": 2})]

    def test_a_logger_for_fabric_alone_is_accepted(self):
        alone, full = ForFabric(), CSVLogger("logs")
        fabric = fabric_of(loggers=[alone, full])
        fabric.log("loss", 0.5, step=3)
        assert fabric.loggers == [alone, full]
        assert alone.rows == [(3, {"loss": 0.5})]

    def test_the_trainer_refuses_it_and_names_the_fix(self):
        with pytest.raises(ArgumentTypeError, match=r"ForFabric.*, a logger for Fabric\.\n(.|\n)*save_dir") as caught:
            L.Trainer(logger=[ForFabric()])
        made = {"lightlib": L, "ForFabric": ForFabric}
        exec(str(caught.value).split("Fix: ")[1].split(", or use it")[0], made)
        trainer = L.Trainer(
            logger=made["ForFabricForTrainer"](),
            max_steps=2,
            log_every_n_steps=1,
            accelerator="cpu",
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trained = Holds(lambda self, batch: self.net.net(batch).sum(), net=Net())
        trained = calling(trained, training_step=lambda self, batch, batch_idx: self.log("loss", 1.0))
        trainer.fit(trained, DataLoader(torch.ones(2, 6)))
        assert [row["loss"] for _, row in trainer.logger.rows] == [1.0, 1.0]

    def test_anything_else_is_refused_in_terms_of_fabric(self):
        with pytest.raises(ArgumentTypeError, match=r"loggers is 3 \(int\)(.|\n)*lightlib\.loggers\.FabricLogger"):
            fabric_of(loggers=3)
        with pytest.raises(ArgumentTypeError, match=r"Fix: Fabric\(loggers=ForFabric\('logs'\)\)"):
            fabric_of(loggers=ForFabric)

    def test_without_loggers_nothing_is_written(self):
        fabric_of().log("loss", 1.0)


class TestMethodsOfModules:
    def test_a_manual_step_equals_plain_torch(self):
        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            with self.toggled_optimizer(optimizer):
                self.manual_backward(self.net(batch).square().sum())
            self.clip_gradients(optimizer, 0.25, "norm")
            optimizer.step()
            optimizer.zero_grad()
            return self.all_gather(torch.tensor(batch_idx))

        torch.manual_seed(1)
        module = with_methods(Net, training_step)
        plain = copy.deepcopy(module)
        fabric = fabric_of()
        model, _ = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        stepped = torch.optim.SGD(plain.parameters(), lr=0.1)
        batch = torch.arange(24.0).reshape(4, 6) / 10
        for index in range(3):
            assert int(model.training_step(batch, index)) == index
            plain.net(batch).square().sum().backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 0.25)
            stepped.step()
            stepped.zero_grad()
        for ours, expected in zip(module.parameters(), plain.parameters(), strict=True):
            assert torch.equal(ours, expected)

    def test_the_optimizers_are_a_list_if_there_are_several(self):
        module = Net()
        weight, *others, last = module.parameters()
        first = torch.optim.SGD([weight, *others], lr=0.1)
        second = torch.optim.SGD([last], lr=0.1)
        _, one, other = fabric_of().setup(module, first, second)
        assert module.optimizers() == [one, other]
        assert module.optimizers(use_pl_optimizer=False) == [first, second]

    def test_what_a_module_reads_of_its_trainer(self, capsys):
        rows = Rows()
        fabric, module = fabric_of(loggers=rows), Net()
        assert module.fabric is None
        fabric.setup(module)
        assert module.fabric is fabric
        assert module.logger is rows
        assert module.loggers == [rows]
        assert (module.global_rank, module.local_rank) == (0, 0)
        assert module.lr_schedulers() is None
        module.print("hello")
        assert capsys.readouterr().out == "hello\n"

    @pytest.mark.parametrize("name", ["current_epoch", "global_step"])
    def test_numbers_that_only_the_loop_knows(self, name):
        module = Net()
        fabric_of().setup(module)
        with pytest.raises(RuntimeError, match=f"self.{name} was read in a module that a Fabric has set up"):
            getattr(module, name)

    def test_an_attribute_of_a_trainer_alone(self):
        module = Net()
        fabric_of().setup(module)
        assert not hasattr(module.trainer, "max_epochs")
        with pytest.raises(AttributeError, match="there is no Trainer"):
            _ = module.trainer.fit_loop
