"""Optimizers and schedulers of the configuration: names, links, and the loop they belong to."""

from __future__ import annotations

import json

import pytest
import torch
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, ExponentialLR, SequentialLR, StepLR

from lightlib.cli import LightningCLI, LRSchedulerCallable, OptimizerCallable, ReduceLROnPlateau, instantiate_class
from lightlib.core.module.module import Module
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import PossibleUserWarning
from tests.cli.parts import QUIET, BareLine, ChosenLine, PointsOfLine, SteepLine, by_hand, points
from tests.runs.plain import same_weights


def fitted(*words, kind=LightningCLI, module=BareLine, **options):
    """Return the CLI after `fit`."""
    return kind(module, PointsOfLine, args=["fit", *QUIET, *words], **options)


def adam_and_steps(parameters):
    optimizer = Adam(parameters, lr=0.1)
    return optimizer, StepLR(optimizer, step_size=1, gamma=0.5)


STEPS = ["--lr_scheduler.step_size=1", "--lr_scheduler.gamma=0.5"]


@pytest.mark.parametrize(
    "words",
    [
        ["--optimizer", "Adam", "--optimizer.lr", "0.1", "--lr_scheduler", "StepLR", *STEPS],
        ["--optimizer=torch.optim.Adam", "--optimizer.init_args.lr=0.1", "--lr_scheduler=StepLR", *STEPS],
        ["--optimizer.class_path=Adam", "--optimizer.lr=0.1", "--lr_scheduler.class_path=StepLR", *STEPS],
        [
            '--optimizer={"class_path": "Adam", "init_args": {"lr": 0.1}}',
            '--lr_scheduler={"class_path": "StepLR", "init_args": {"step_size": 1, "gamma": 0.5}}',
        ],
    ],
)
def test_names_and_class_paths_give_the_plain_loop(words):
    cli = fitted(*words)
    assert type(cli.trainer.optimizers[0]) is Adam
    assert same_weights(cli.model, by_hand(BareLine, adam_and_steps))


def test_an_optimizer_alone_and_none():
    cli = fitted("--optimizer=SGD", "--optimizer.lr=0.05")
    assert cli.trainer.lr_scheduler_configs == []
    assert same_weights(cli.model, by_hand(BareLine, lambda parameters: (SGD(parameters, lr=0.05), None)))
    assert same_weights(fitted(module=SteepLine, save_config_callback=None).model, cli.model)


def test_a_scheduler_alone_is_refused():
    with pytest.raises(MisconfigurationException, match="has an `lr_scheduler`, but no `optimizer`"):
        fitted("--lr_scheduler=StepLR", "--lr_scheduler.step_size=1", module=SteepLine)


def test_a_scheduler_alone_leaves_the_model_its_own_where_the_two_are_combined_otherwise():
    class Combines(LightningCLI):
        @staticmethod
        def configure_optimizers(*_):
            raise AssertionError

    with pytest.warns(PossibleUserWarning, match=r"no `optimizer`: Combines.configure_optimizers is not called"):
        cli = fitted("--lr_scheduler=StepLR", "--lr_scheduler.step_size=1", kind=Combines, module=SteepLine)
    assert type(cli.trainer.optimizers[0]) is SGD
    assert cli.trainer.lr_scheduler_configs == []


def test_a_module_without_parameters_is_refused():
    class Empty(BareLine):
        def __init__(self):
            super().__init__()
            del self.layer

    with pytest.raises(MisconfigurationException, match="has an optimizer, but Empty has no parameters"):
        fitted("--optimizer=SGD", module=Empty)


def test_what_the_configuration_replaces_is_said():
    with pytest.warns(PossibleUserWarning, match=r"`optimizer` takes the place of SteepLine\.configure_optimizers"):
        cli = fitted("--optimizer=Adam", "--optimizer.lr=0.1", module=SteepLine)
    assert type(cli.trainer.optimizers[0]) is Adam


def test_a_plateau_scheduler_looks_at_its_metric():
    words = ["--optimizer=SGD", "--optimizer.lr=0.1", "--lr_scheduler=ReduceLROnPlateau", "--trainer.max_epochs=5"]
    words += ["--lr_scheduler.monitor=val_loss", "--lr_scheduler.patience=0", "--lr_scheduler.threshold=0.9"]
    cli = fitted(*words)
    (entry,) = cli.trainer.lr_scheduler_configs
    assert (type(entry.scheduler), entry.monitor, entry.scheduler.monitor) == (
        ReduceLROnPlateau,
        "val_loss",
        "val_loss",
    )
    x, y = points(16)

    def configure(parameters):
        optimizer = SGD(parameters, lr=0.1)
        return optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)

    def step(scheduler, module):
        with torch.no_grad():
            losses = [(module(a) - b).square().mean() for a, b in zip(x.split(4), y.split(4), strict=True)]
        scheduler.step(torch.stack(losses).mean())

    assert same_weights(cli.model, by_hand(BareLine, configure, epochs=5, step=step))
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] < 0.1


def test_a_plateau_scheduler_needs_its_metric(capsys):
    with pytest.raises(SystemExit):
        fitted("--optimizer=SGD", "--lr_scheduler=ReduceLROnPlateau")
    assert "monitor" in capsys.readouterr().err


def test_the_two_are_combined_by_the_subclass():
    class CLI(LightningCLI):
        @staticmethod
        def configure_optimizers(lightning_module, optimizer, lr_scheduler=None):
            assert isinstance(lightning_module, BareLine)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": lr_scheduler, "interval": "step"}}

    cli = fitted("--optimizer=Adam", "--lr_scheduler=StepLR", "--lr_scheduler.step_size=2", kind=CLI)
    assert cli.trainer.lr_scheduler_configs[0].interval == "step"
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-3 * 0.1**4)


def test_one_class_of_optimizer_and_of_scheduler():
    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_optimizer_args(Adam)
            parser.add_lr_scheduler_args(StepLR)
            parser.set_defaults({"optimizer.lr": 0.1})

    cli = fitted(*STEPS, kind=CLI)
    assert same_weights(cli.model, by_hand(BareLine, adam_and_steps))
    assert cli.config.fit.optimizer.lr == 0.1


def test_some_classes_of_optimizers(capsys):
    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_optimizer_args((SGD, Adam))
            parser.add_lr_scheduler_args((StepLR, ExponentialLR))

    cli = fitted("--optimizer=Adam", "--lr_scheduler=ExponentialLR", "--lr_scheduler.gamma=0.1", kind=CLI)
    assert type(cli.trainer.lr_scheduler_configs[0].scheduler) is ExponentialLR
    with pytest.raises(SystemExit):
        fitted("--optimizer=RMSprop", kind=CLI)
    assert "RMSprop" in capsys.readouterr().err


class TwoOptimizers(BareLine):
    """Two layers, each with an optimizer that was given as a configuration."""

    def __init__(self, first_init: dict, second_init: dict | None = None, steps_init: dict | None = None):
        super().__init__()
        self.automatic_optimization = False
        self.first_init, self.second_init, self.steps_init = first_init, second_init, steps_init
        self.other = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self):
        first = instantiate_class(self.layer.parameters(), self.first_init)
        second = instantiate_class(self.other.parameters(), self.second_init)
        return [first, second], [instantiate_class(first, self.steps_init)]


def test_two_optimizers_that_are_linked_to_the_model():
    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_optimizer_args(nested_key="first", link_to="model.first_init")
            parser.add_optimizer_args(SGD, nested_key="second", link_to="model.second_init")
            parser.add_lr_scheduler_args(StepLR, nested_key="steps", link_to="model.steps_init")

    cli = fitted(
        "--first=Adam", "--first.lr=0.5", "--second.lr=0.25", "--steps.step_size=7", kind=CLI, module=TwoOptimizers
    )
    first, second = cli.trainer.optimizers
    assert (type(first), first.param_groups[0]["lr"]) == (Adam, 0.5)
    assert (type(second), second.param_groups[0]["lr"]) == (SGD, 0.25)
    assert cli.trainer.lr_scheduler_configs[0].scheduler.step_size == 7
    assert cli.model.second_init["class_path"] == "torch.optim.sgd.SGD"


@pytest.mark.parametrize("which", ["optimizer", "lr_scheduler"])
def test_two_that_the_model_is_to_get_by_itself_are_refused(which):
    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_optimizer_args(SGD, "one")
            if which == "optimizer":
                parser.add_optimizer_args(Adam, "two")
            else:
                parser.add_lr_scheduler_args(StepLR, "steps")
                parser.add_lr_scheduler_args(ConstantLR, "constant")

    words = ["--steps.step_size=1"] if which == "lr_scheduler" else []
    with pytest.raises(MisconfigurationException, match=r"several optimizers or schedulers with link_to='AUTOMATIC': "):
        fitted(*words, kind=CLI)


def test_what_is_no_optimizer_is_refused():
    def refused(add, *args):
        class CLI(LightningCLI):
            def add_arguments_to_parser(self, parser):
                getattr(parser, add)(*args)

        with pytest.raises(ArgumentTypeError, match="subclasses of it"):
            fitted(kind=CLI)

    refused("add_optimizer_args", StepLR)
    refused("add_optimizer_args", (SGD, Module))
    refused("add_lr_scheduler_args", SGD)


def test_nothing_is_added_where_it_is_not_wanted(capsys):
    with pytest.raises(SystemExit):
        fitted("--optimizer=SGD", auto_configure_optimizers=False)
    assert "'optimizer' (on the command line) is not a key of" in capsys.readouterr().err
    assert fitted(module=SteepLine, auto_configure_optimizers=False).trainer.global_step == 8


def test_callables_that_make_optimizers_and_schedulers():
    words = ["--model.optimizer=Adam", "--model.optimizer.lr=0.1"]
    words += ["--model.scheduler=StepLR", "--model.scheduler.step_size=1", "--model.scheduler.gamma=0.5"]
    cli = fitted(*words, module=ChosenLine)
    assert same_weights(cli.model, by_hand(ChosenLine, adam_and_steps))


def test_callables_in_a_file_by_their_class_paths():
    model = {
        "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1}},
        "scheduler": {"class_path": "torch.optim.lr_scheduler.CosineAnnealingLR", "init_args": {"T_max": 2}},
    }
    cli = fitted("--config", json.dumps({"model": model}), module=ChosenLine)

    def configure(parameters):
        optimizer = Adam(parameters, lr=0.1)
        return optimizer, CosineAnnealingLR(optimizer, 2)

    assert same_weights(cli.model, by_hand(ChosenLine, configure))


def test_the_optimizer_is_built_when_the_trainer_asks_for_it():
    class Later(BareLine):
        def __init__(self):
            super().__init__()
            del self.layer

        def configure_model(self):
            self.layer = torch.nn.Linear(3, 1)

    assert len(fitted("--optimizer=Adam", module=Later).trainer.optimizers[0].param_groups[0]["params"]) == 2


class InLists(BareLine):
    """Its optimizers, one a layer, and the schedules of the first one, in turn, are arguments."""

    def __init__(self, optimizers: list[OptimizerCallable], schedules: list[LRSchedulerCallable]):
        super().__init__()
        self.other = torch.nn.Linear(1, 1)
        self.optimizers_of_layers, self.schedules = optimizers, schedules

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self.other.weight.sum()

    def configure_optimizers(self):
        layers = [self.layer.parameters(), self.other.parameters()]
        made = [make(layer) for make, layer in zip(self.optimizers_of_layers, layers, strict=True)]
        chain = SequentialLR(made[0], [make(made[0]) for make in self.schedules], milestones=[1])
        return made, [chain]


LISTS = """
model:
  optimizers:
    - class_path: Adam
      init_args: {lr: 0.1}
    - class_path: SGD
      init_args: {lr: 0.5}
  schedules:
    - class_path: ConstantLR
      init_args: {factor: 0.5, total_iters: 1}
    - class_path: ExponentialLR
      init_args: {gamma: 0.1}
"""


def test_lists_of_optimizers_and_of_chained_schedules(tmp_path):
    (tmp_path / "lists.yaml").write_text(LISTS)
    cli = fitted(f"--config={tmp_path}/lists.yaml", "--trainer.max_epochs=3", module=InLists)
    first, second = cli.trainer.optimizers
    assert (type(first), type(second), second.param_groups[0]["lr"]) == (Adam, SGD, 0.5)
    assert first.param_groups[0]["lr"] == pytest.approx(0.1 * 0.1**2)  # two epochs of the second schedule
