"""Subclasses that build the classes themselves, by the private methods of Lightning's LightningCLI."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightlib.callbacks import EarlyStopping
from lightlib.callbacks.callback import Callback
from lightlib.cli import LightningCLI
from lightlib.report import PossibleUserWarning
from tests.cli.parts import QUIET, PointsOfLine, SteepLine


class Added(Callback):
    """A callback that no configuration names."""


class Own(LightningCLI):
    """Builds as projects do: with code of their own in place of each public step, which calls Lightning's methods."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls: list[Any] = []
        super().__init__(*args, **kwargs)

    def add_core_arguments_to_parser(self, parser):
        parser.add_lightning_class_args(self.trainer_class, "trainer")
        parser.add_lightning_class_args(self._model_class, "model", subclass_mode=self.subclass_mode_model)
        parser.add_lightning_class_args(self._datamodule_class, "data", subclass_mode=self.subclass_mode_data)
        parser.add_lightning_class_args(EarlyStopping, "stops")
        parser.set_defaults({"stops.monitor": "train_loss"})

    def instantiate_classes(self):
        self.config_init = self.parser.instantiate_classes(self.config)
        self.datamodule = self._get(self.config_init, "data")
        self.model = self._get(self.config_init, "model")
        self._add_configure_optimizers_method_to_model(self.subcommand)
        self.trainer = self.instantiate_trainer()

    def instantiate_trainer(self, **kwargs):
        callbacks = [self._get(self.config_init, key) for key in self._parser(self.subcommand).callback_keys]
        arguments = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        return self._instantiate_trainer(arguments, [*callbacks, Added()])

    def _add_instantiators(self):
        self.calls.append("_add_instantiators")
        super()._add_instantiators()

    def _add_configure_optimizers_method_to_model(self, *args: Any, **kwargs: Any) -> None:
        super()._add_configure_optimizers_method_to_model(*args, **kwargs)
        self.calls.append(("_add_configure_optimizers_method_to_model", *args))

    def _prepare_subcommand_kwargs(self, subcommand):
        arguments = super()._prepare_subcommand_kwargs(subcommand)
        self.calls.append((subcommand, sorted(arguments), sorted(self._subcommand_method_arguments[subcommand])))
        return arguments


def test_each_step_is_one_that_a_subclass_may_take():
    with pytest.warns(PossibleUserWarning, match="takes the place of SteepLine.configure_optimizers"):
        cli = Own(SteepLine, PointsOfLine, args=["fit", *QUIET, "--optimizer=Adam", "--optimizer.lr=0.25"])
    assert cli.calls[:2] == ["_add_instantiators", ("_add_configure_optimizers_method_to_model", "fit")]
    verb, passed, options = cli.calls[2]
    assert verb == "fit"
    assert set(passed) == {*options, "model", "datamodule"}
    assert "ckpt_path" in options
    kinds = [type(callback) for callback in cli.trainer.callbacks]
    assert [kind for kind in kinds if kind in (Added, EarlyStopping)] == [EarlyStopping, Added]
    (optimizer,) = cli.trainer.optimizers
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.defaults["lr"] == 0.25


def test_the_classes_are_those_that_were_given_or_any():
    assert Own(SteepLine, PointsOfLine, run=False, args=QUIET)._model_class is SteepLine
    cli = LightningCLI(run=False, args=[f"--model={SteepLine.__module__}.SteepLine", *QUIET])
    assert (cli._model_class.__name__, cli._datamodule_class.__name__) == ("Module", "DataModule")
    assert cli._parser(None) is cli.parser
    assert cli._subcommand_parsers == {}
