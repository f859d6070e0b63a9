"""Bad input: arguments that the Trainer and its methods do not have, and environment variables."""

from __future__ import annotations

import re

import pytest

from lightlib.core.module.datamodule import DataModule
from lightlib.core.setup.trainer_call import REMOVED
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.report import PossibleUserWarning
from tests.runs.bad_input import Net, loader, refused, trainer

TYPE, RANGE, NAME = ArgumentTypeError, MisconfigurationException, UnknownNameError
FIT = "model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, weights_only, resume"
TEST = "model, dataloaders, ckpt_path, verbose, datamodule, weights_only"
PREDICT = "model, dataloaders, datamodule, return_predictions, ckpt_path, weights_only"
KNOWN = {"fit": FIT, "validate": TEST, "test": TEST, "predict": PREDICT}


class TestNames:
    """Arguments that the Trainer does not have."""

    @pytest.mark.parametrize("name", sorted(REMOVED))
    def test_removed_in_lightning_2(self, name):
        place, fix = REMOVED[name]
        fix = fix.replace("{owner}", "Trainer").replace("{loaders}", "Trainer(")
        with refused(
            TYPE,
            f"Trainer got `{name}=7`, an argument that was removed in Lightning 2.0.",
            f"{place}.",
            fix.replace("{value}", "7"),
        ):
            Trainer(**{name: 7})

    @pytest.mark.parametrize(
        ("old", "value", "fix"),
        [
            ("gpus", 2, "Trainer(accelerator='gpu', devices=2)"),
            ("resume_from_checkpoint", "a.ckpt", "trainer.fit(module, ckpt_path='a.ckpt')"),
            ("checkpoint_callback", False, "Trainer(enable_checkpointing=False)"),
            ("progress_bar_refresh_rate", 20, "Trainer(callbacks=[RichProgressBar(refresh_rate=20)])"),
            ("replace_sampler_ddp", False, "Trainer(use_distributed_sampler=False)"),
        ],
    )
    def test_the_replacement_takes_the_value(self, old, value, fix):
        with pytest.raises(TYPE) as caught:
            Trainer(**{old: value})
        assert str(caught.value).endswith(f"Fix: {fix}")

    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ("max_epoch", "max_epochs"),
            ("percision", "precision"),
            ("callback", "callbacks"),
            ("acelerator", "accelerator"),
        ],
    )
    def test_misspelt(self, given, meant):
        with refused(
            TYPE,
            f"Trainer got an unknown argument `{given}=1`. Did you mean '{meant}'?",
            "an argument of the Trainer.",
            f"Trainer({meant}=1)",
        ):
            Trainer(**{given: 1})

    def test_nothing_like_it(self):
        with refused(
            TYPE,
            "Trainer got an unknown argument `zzz=1`.",
            "an argument among accelerator, ***, suggest_integrations.",
            "correct the name or leave it out.",
        ):
            Trainer(zzz=1)

    @pytest.mark.parametrize(
        ("given", "what", "fix"),
        [
            ((10,), "1 positional argument: 10.", "Trainer(max_epochs=10)"),
            (("cpu", 3), "2 positional arguments: 'cpu', 3.", "Trainer(max_epochs=10)"),
        ],
    )
    def test_positional(self, given, what, fix):
        with refused(TYPE, f"Trainer got {what}", "keyword arguments only.", fix):
            Trainer(*given)


class TestEnvironment:
    """Defaults from the environment, and warnings about invalid ones."""

    @pytest.mark.parametrize("prefix", ["PL_TRAINER_", "LIGHTLIB_"])
    @pytest.mark.parametrize(
        ("name", "text", "value"),
        [
            ("max_steps", "3", 3),
            ("limit_val_batches", "0.5", 0.5),
            ("fast_dev_run", "false", 0),
            ("max_time", "none", None),
        ],
    )
    def test_a_default(self, monkeypatch, prefix, name, text, value):
        monkeypatch.setenv(prefix + name.upper(), text)
        assert getattr(trainer(), name) == value

    def test_an_argument_comes_first(self, monkeypatch):
        monkeypatch.setenv("PL_TRAINER_MAX_STEPS", "3")
        assert trainer(max_steps=5).max_steps == 5

    def test_our_name_comes_first(self, monkeypatch):
        monkeypatch.setenv("PL_TRAINER_MAX_STEPS", "3")
        monkeypatch.setenv("LIGHTLIB_MAX_STEPS", "4")
        assert trainer().max_steps == 4

    @pytest.mark.parametrize(
        ("variable", "text", "kind", "what", "note"),
        [
            ("PL_TRAINER_MAX_STEPS", "ten", TYPE, "max_steps is 'ten' (str).", "max_steps='ten'"),
            ("LIGHTLIB_MAX_STEPS", "-3", RANGE, "max_steps is -3.", "max_steps=-3"),
            ("PL_TRAINER_STRATEGY", "dpp", NAME, "Unknown strategy 'dpp'. Did you mean 'ddp'?", "strategy='dpp'"),
            ("PL_TRAINER_PRECISION", "17", NAME, "Unknown precision 17.***", "precision=17"),
            ("LIGHTLIB_DEVICES", "[0]", RANGE, "devices=[0] was given for the CPU.", "devices=[0]"),
            ("LIGHTLIB_MIN_EPOCHS", "9", RANGE, "min_epochs=9 is more than max_epochs=1.", "min_epochs=9"),
        ],
    )
    def test_a_wrong_value_names_the_variable(self, monkeypatch, variable, text, kind, what, note):
        monkeypatch.setenv(variable, text)
        come = f"{note} comes from the environment variable {variable}; correct it or unset it."
        with refused(kind, what, "***", f"***\n  Note: {come}"):
            trainer()

    def test_others_are_not_named(self, monkeypatch):
        monkeypatch.setenv("PL_TRAINER_MAX_STEPS", "3")
        with pytest.raises(TYPE) as caught:
            trainer(max_epochs="ten")
        assert "environment" not in str(caught.value)

    @pytest.mark.parametrize(
        ("variable", "hint"),
        [
            ("PL_TRAINER_MAX_EPOCH", "no argument `max_epoch`; Did you mean PL_TRAINER_MAX_EPOCHS?"),
            ("LIGHTLIB_MAXSTEPS", "no argument `maxsteps`; Did you mean LIGHTLIB_MAX_STEPS?"),
            ("PL_TRAINER_GPUS", "no argument `gpus`; its replacement: `accelerator` and `devices`"),
        ],
    )
    def test_a_variable_that_nobody_reads(self, monkeypatch, variable, hint):
        monkeypatch.setenv(variable, "1")
        text = f"The environment variable {variable}='1' is not read: the Trainer has {hint}"
        with pytest.warns(PossibleUserWarning, match=re.escape(text)):
            trainer()

    def test_variables_of_others(self, monkeypatch):
        monkeypatch.setenv("LIGHTLIB_CACHE", "1")
        assert trainer().max_epochs == 1


class TestOfTheVerbs:
    """Arguments that fit, validate, test and predict do not have."""

    def refuses(self, verb, name, value, hint, fix):
        module = Net()
        with refused(
            TYPE,
            f"trainer.{verb}() got an unknown argument `{name}={value!r}`.{hint}",
            f"an argument among {KNOWN[verb]}.",
            fix,
        ):
            getattr(trainer(), verb)(module, loader(), **{name: value})
        assert module.steps == 0

    @pytest.mark.parametrize(
        ("verb", "data"), [("fit", "train"), ("validate", "val"), ("test", "test"), ("predict", "predict")]
    )
    @pytest.mark.parametrize("name", ["batch_size", "num_workers"])
    def test_of_a_data_module(self, verb, data, name):
        fix = f"trainer.{verb}(module, datamodule=DataModule.from_datasets({data}_dataset=(x, y), {name}=8))"
        self.refuses(verb, name, 8, " It is an argument of a loader.", fix)

    def test_what_it_names_works(self):
        data = DataModule.from_datasets(train_dataset=loader(5).dataset, batch_size=2)
        module = Net()
        trainer().fit(module, datamodule=data)
        assert module.steps == 3

    @pytest.mark.parametrize("name", ["shuffle", "drop_last", "pin_memory"])
    def test_of_a_loader(self, name):
        fix = f"trainer.fit(module, DataLoader(dataset, {name}=True))"
        self.refuses("fit", name, True, " It is an argument of a loader.", fix)

    @pytest.mark.parametrize(("name", "own"), [("epochs", "max_epochs"), ("max_epochs",) * 2, ("precision",) * 2])
    def test_of_the_trainer(self, name, own):
        self.refuses("fit", name, 3, " It is an argument of Trainer.", f"Trainer({own}=3)")

    @pytest.mark.parametrize(
        ("verb", "name", "meant"),
        [
            ("fit", "train_dataloader", "train_dataloaders"),
            ("fit", "dataloaders", "train_dataloaders"),
            ("fit", "val_loader", "val_dataloaders"),
            ("fit", "validation_data", "val_dataloaders"),
            ("fit", "data_module", "datamodule"),
            ("validate", "val_dataloaders", "dataloaders"),
            ("test", "test_dataloader", "dataloaders"),
            ("predict", "return_prediction", "return_predictions"),
        ],
    )
    def test_misspelt(self, verb, name, meant):
        self.refuses(verb, name, "x", f" Did you mean {meant!r}?", f"trainer.{verb}(module, {meant}='x')")

    def test_a_value_that_cannot_be_written(self):
        self.refuses("fit", "val_loader", [1, 2], " Did you mean 'val_dataloaders'?", "trainer.fit(module, val_***=…)")

    def test_a_name_like_no_other(self):
        self.refuses("predict", "zzz", 1, "", "leave it out.")

    def test_removed(self):
        fix = "trainer.fit(module, ckpt_path='a')"
        self.refuses("fit", "resume_from_checkpoint", "a", " Its replacement: `ckpt_path` of `fit`.", fix)
