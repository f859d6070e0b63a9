"""Bad input: arguments that the Trainer does not have (any more), and defaults from the environment."""

from __future__ import annotations

import re

import pytest

from lightlib.core.setup.arguments import REMOVED
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.report import PossibleUserWarning
from tests.runs.bad_input import refused, trainer

TYPE, RANGE, NAME = ArgumentTypeError, MisconfigurationException, UnknownNameError


class TestNames:
    """Arguments that the Trainer does not have."""

    @pytest.mark.parametrize("name", sorted(REMOVED))
    def test_removed_in_lightning_2(self, name):
        place, fix = REMOVED[name]
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

    @pytest.mark.parametrize(
        ("name", "place", "fix"),
        [
            (
                "activation_checkpointing",
                "an argument of the strategy.",
                "Trainer(strategy=SingleDeviceStrategy(activation_checkpointing=True)), or the same in another ***",
            ),
            (
                "compile",
                "a compiled module, or an argument of MeshStrategy, which compiles each block.",
                "trainer.fit(torch.compile(module), …), or Trainer(strategy=MeshStrategy(replicate=-1, compile=True)).",
            ),
        ],
    )
    def test_an_argument_of_another_object(self, name, place, fix):
        with refused(TYPE, f"Trainer got an unknown argument `{name}=True`.", place, fix):
            Trainer(**{name: True})

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
