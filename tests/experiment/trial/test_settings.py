"""The configuration of a trial's fit: layers, hyperparameters, and the arguments of the Trainer."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
import yaml

from lightlib.cli import LightningCLI
from lightlib.errors import MisconfigurationException
from lightlib.experiment.file import read
from lightlib.experiment.space import trial_seed
from lightlib.experiment.trial.settings import fit_settings
from lightlib.experiment.trial.trainer import checkpoint_period, rungs_of_fit
from lightlib.strategies import DDPStrategy
from tests.experiment.given import read_text

PARTS = "tests.experiment.trial.parts"
ADAM = {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1, "eps": 1e-6}}
QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


def experiment(fit=None, *, searcher=None, **keys):
    """Return an experiment of one trial with these keys."""
    keys = {"name": "lines", "hyperparameters": {"global_batch_size": 2}, **keys}
    return read({**keys, "fit": fit or {}, "searcher": searcher or {"name": "single", "metric": "val_loss"}})


def settings(fit=None, hparams=None, *, trial=0, seed=42, devices=1, accelerator="cpu", context=".", **keys):
    config = experiment({"trainer": {}, **(fit or {})}, **keys)
    return fit_settings(
        config, hparams or {}, trial=trial, seed=seed, devices=devices, accelerator=accelerator, context=Path(context)
    )


def trainer(fit=None, hparams=None, **keys):
    """Return the Trainer's section; `fit` is that of the experiment's Trainer."""
    return settings({"trainer": fit or {}}, hparams, **keys).fit["trainer"]


def single(**length):
    return {"name": "single", "metric": "val_loss", **length}


def halving(time_metric, max_time):
    return {
        "name": "halving",
        "metric": "val_loss",
        "max_trials": 4,
        "num_rungs": 2,
        "time_metric": time_metric,
        "max_time": max_time,
    }


def of_class(name, **init_args):
    return {"class_path": f"{PARTS}.{name}", **({"init_args": init_args} if init_args else {})}


def error(call, *args, **kwargs):
    """Return the three parts of the error."""
    with pytest.raises(MisconfigurationException) as caught:
        call(*args, **kwargs)
    what, found, rest = str(caught.value).partition("\n  Expected: ")
    expected, fixed, fix = rest.partition("\n  Fix: ")
    assert found
    assert fixed
    return what, expected, fix


class TestLayers:
    def test_the_fit_is_merged_over_the_file(self):
        Path("base.yaml").write_text(
            "trainer: {max_epochs: 3, callbacks: [{class_path: A}, {class_path: B}], logger: true}\n"
            "model: {class_path: m.Net, init_args: {width: 3, depth: 2}}\n",
            encoding="utf-8",
        )
        fit = {
            "trainer": {"callbacks": [{"class_path": "C"}], "logger": None},
            "model": {"init_args": {"depth": 4}},
        }
        found = settings(fit, entrypoint="base.yaml").fit
        assert found["model"] == {"class_path": "m.Net", "init_args": {"width": 3, "depth": 4}}
        assert found["trainer"]["max_epochs"] == 3
        assert found["trainer"]["callbacks"] == [{"class_path": "C"}]
        assert found["trainer"]["logger"] is None

    def test_a_file_may_have_its_keys_below_the_command(self):
        Path("base.yaml").write_text(
            "seed_everything: 1\nfit: {model: m.Net}\ntest: {verbose: true}\n", encoding="utf-8"
        )
        found = settings(entrypoint="base.yaml").fit
        assert found["model"] == {"class_path": "m.Net"}
        assert "test" not in found

    def test_the_file_is_found_in_the_context(self, tmp_path):
        (tmp_path / "context").mkdir()
        (tmp_path / "context" / "base.yaml").write_text("trainer: {max_epochs: 3}\n", encoding="utf-8")
        found = settings(entrypoint="base.yaml", context=tmp_path / "context").fit
        assert found["trainer"]["max_epochs"] == 3

    def test_a_broken_file_is_named_with_its_line(self):
        Path("base.yaml").write_text("trainer:\n  max_epochs: 3\n  max_epochs: 4\n", encoding="utf-8")
        assert "base.yaml, line 3" in error(settings, entrypoint="base.yaml")[0]

    def test_another_class_drops_the_arguments_of_the_first(self):
        Path("base.yaml").write_text(yaml.safe_dump({"optimizer": ADAM}), encoding="utf-8")
        found = settings({"optimizer": {"class_path": "torch.optim.SGD"}}, entrypoint="base.yaml").fit
        assert found["optimizer"] == {"class_path": "torch.optim.SGD"}

    def test_the_short_name_of_the_same_class_keeps_its_arguments(self):
        Path("base.yaml").write_text(yaml.safe_dump({"optimizer": ADAM}), encoding="utf-8")
        found = settings({"optimizer": "Adam"}, entrypoint="base.yaml").fit
        assert found["optimizer"] == {"class_path": "Adam", "init_args": ADAM["init_args"]}

    def test_dotted_keys_of_the_fit(self):
        found = settings({"model": "m.Net", "model.width": 3, "trainer.max_epochs": 2}).fit
        assert found["model"] == {"class_path": "m.Net", "init_args": {"width": 3}}
        assert found["trainer"]["max_epochs"] == 2

    def test_a_class_is_the_model(self):
        found = settings({"model": {"init_args": {"width": 3}}}, entrypoint="pkg.model:Net").fit
        assert found["model"] == {"class_path": "pkg.model.Net", "init_args": {"width": 3}}

    def test_inputs_stay_as_they_are(self):
        config = experiment({"trainer": {"callbacks": [{"class_path": "A"}]}, "optimizer": copy.deepcopy(ADAM)})
        hparams = {"optimizer.lr": 0.2, "trainer.callbacks.0.patience": 1, "trainer.plugins": [{"a": []}]}
        before = copy.deepcopy((config.plain(), hparams))
        found = fit_settings(config, hparams, trial=0, seed=1, devices=1, accelerator="cpu", context=Path())
        found.fit["trainer"]["plugins"][0]["a"].append(1)
        found.fit["optimizer"]["init_args"]["eps"] = 0
        assert (config.plain(), hparams) == before

    def test_a_trainer_that_is_no_mapping(self):
        what, _, fix = error(trainer, "trainer.yaml")
        assert "'fit.trainer' is 'trainer.yaml' (str)" in what
        assert fix == "fit: {trainer: {max_epochs: 3}}"

    def test_an_empty_trainer_is_filled(self):
        assert settings({"trainer": None}).fit["trainer"]["devices"] == 1


class TestTheClassOfAnEntrypoint:
    @pytest.fixture(autouse=True)
    def files(self):
        for name, text in {
            "one.py": "class One: ...\n",
            "two.py": "class Both:\n    class Inner: ...\n",
            "three.py": "class Both: ...\ndef f():\n    class Hidden: ...\n",
            "broken.py": "class Broken(\n",
            "not-a-module.py": "class One: ...\n",
        }.items():
            Path(name).write_text(text, encoding="utf-8")

    def test_the_file_that_defines_it(self):
        assert settings(entrypoint=":One").fit["model"]["class_path"] == "one.One"

    def test_a_nested_class(self):
        Path("three.py").unlink()
        assert settings(entrypoint=":Both.Inner").fit["model"]["class_path"] == "two.Both.Inner"

    def test_no_file(self):
        what, expected, fix = error(settings, entrypoint=":Hidden")
        assert what == (
            "The class 'Hidden' of the entrypoint is defined in no Python file of .: "
            "broken.py, one.py, three.py, two.py."
        )
        assert expected == "a class that exactly one file of the context defines at its top level."
        assert fix == "entrypoint: module:Hidden"

    def test_a_misspelt_name(self):
        assert error(settings, entrypoint=":one")[0].endswith("Did you mean 'One'?")

    def test_several_files(self):
        what, _, fix = error(settings, entrypoint=":Both")
        assert what == "The class 'Both' of the entrypoint is defined in 2 files: three.py, two.py."
        assert fix == "entrypoint: three:Both"

    def test_the_place_is_named(self):
        config = read_text(
            "name: a\nentrypoint: ':Hidden'\nhyperparameters: {global_batch_size: 2}\n"
            "searcher: {name: single, metric: x}\n"
        )
        found = error(fit_settings, config, {}, trial=0, seed=1, devices=1, accelerator="cpu", context=Path())
        assert "(mnist.yaml, line 2)" in found[0]


class TestHyperparametersOfSections:
    def test_a_key_of_the_trainer(self):
        assert trainer(hparams={"trainer.gradient_clip_val": 0.5})["gradient_clip_val"] == 0.5

    def test_a_hyperparameter_wins_over_the_fit_and_the_optimizations(self):
        found = trainer(
            {"accumulate_grad_batches": 2},
            {"trainer.accumulate_grad_batches": 8},
            optimizations={"aggregation_frequency": 4},
        )
        assert found["accumulate_grad_batches"] == 8

    def test_an_item_of_a_list(self):
        fit = {"callbacks": [{"class_path": "A"}, {"class_path": "B", "init_args": {"patience": 1, "mode": "max"}}]}
        found = trainer(fit, {"trainer.callbacks.1.init_args.patience": 5, "trainer.callbacks.0.x": 1})["callbacks"]
        assert found == [
            {"class_path": "A", "init_args": {"x": 1}},
            {"class_path": "B", "init_args": {"patience": 5, "mode": "max"}},
        ]

    @pytest.mark.parametrize("name", ["2", "last", "-1"])
    def test_no_item_of_a_list(self, name):
        what, expected, _ = error(trainer, {"callbacks": ["A", "B"]}, {f"trainer.callbacks.{name}.patience": 5})
        assert what == f"'trainer.callbacks.{name}.patience' sets {name!r} in 'trainer.callbacks', a list of 2."
        assert expected == "an index from 0 to 1."

    def test_a_key_below_a_value(self):
        what, _, fix = error(trainer, {"precision": "16-mixed"}, {"trainer.precision.dtype": 1})
        assert what == "'trainer.precision.dtype' sets a value below 'trainer.precision', which is of type str."
        assert fix == "write out the keys of 'trainer.precision' in `fit`, or set 'trainer.precision' itself."

    @pytest.mark.parametrize("section", ["model", "data", "optimizer", "lr_scheduler"])
    def test_the_short_form(self, section):
        given = {"class_path": "m.Thing", "init_args": {"lr": 1, "width": 2}}
        expected = {"class_path": "m.Thing", "init_args": {"lr": 0.1, "width": 2}}
        assert settings({section: given}, {f"{section}.lr": 0.1}).fit[section] == expected
        assert settings({section: given}, {f"{section}.init_args.lr": 0.1}).fit[section] == expected

    def test_the_short_form_of_a_name_and_of_a_component(self):
        found = settings({"optimizer": "SGD", "model": {"class_path": "m.Net", "init_args": {"encoder": "m.Encoder"}}},
                         {"optimizer.lr": 0.1, "model.encoder.width": 8}).fit  # fmt: skip
        assert found["optimizer"] == {"class_path": "SGD", "init_args": {"lr": 0.1}}
        encoder = {"class_path": "m.Encoder", "init_args": {"width": 8}}
        assert found["model"] == {"class_path": "m.Net", "init_args": {"encoder": encoder}}

    def test_a_class_and_its_arguments_in_any_order(self):
        hparams = {"optimizer.betas": [0, 1], "optimizer.class_path": "torch.optim.AdamW"}
        expected = {"class_path": "torch.optim.AdamW", "init_args": {"betas": [0, 1]}}
        assert settings({"optimizer": "torch.optim.SGD"}, hparams).fit["optimizer"] == expected
        hparams = {"optimizer.betas": [0, 1], "optimizer": "torch.optim.AdamW"}
        assert settings({"optimizer": {**ADAM}}, hparams).fit["optimizer"] == expected

    def test_an_argument_of_a_section_without_a_class(self):
        what, expected, fix = error(settings, None, {"optimizer.lr": 0.1})
        assert what == "Hyperparameter 'optimizer.lr' is an argument of 'optimizer', which names no class."
        assert expected == "a class_path in 'optimizer', or another name for a hyperparameter of your own."
        assert fix == "fit: {optimizer: {class_path: package.module.Class}}"

    @pytest.mark.parametrize("key", ["trainer.max_epochs", "trainer.max_steps", "trainer.devices"])
    def test_a_key_that_the_experiment_sets(self, key):
        what, _, _ = error(trainer, None, {key: 2}, searcher=single(max_length={"epochs": 3}))
        assert what.startswith(f"Hyperparameter {key!r} has no effect: ")

    def test_without_a_length_the_epochs_can_be_searched(self):
        assert trainer(hparams={"trainer.max_epochs": 2})["max_epochs"] == 2


class TestBareHyperparameters:
    def test_the_model_and_the_data_that_have_the_parameter(self):
        found = settings(
            {"model": of_class("Line", lr=1.0), "data": of_class("Records")},
            {"lr": 0.1, "global_batch_size": 4, "note": "x", "deep.note": 1},
        )
        assert found.fit["model"] == of_class("Line", lr=0.1)
        assert found.fit["data"] == of_class("Records", lr=0.1, global_batch_size=4)
        assert found.untaken == ["note", "deep.note"]

    def test_nested_ones_are_a_mapping(self):
        found = settings({"model": of_class("Line", layers={"act": "relu"})}, {"layers.width": 8, "layers.a.b": 1})
        assert found.fit["model"]["init_args"]["layers"] == {"act": "relu", "width": 8, "a": {"b": 1}}
        assert found.untaken == []

    def test_other_arguments_of_the_model(self):
        found = settings(
            {"model": of_class("OpenLine"), "data": of_class("Records")},
            {"lr": 0.1, "global_batch_size": 4, "rate.of": 1},
        )
        assert found.fit["model"] == {**of_class("OpenLine", lr=0.1), "dict_kwargs": {"rate": {"of": 1}}}
        assert found.fit["data"]["init_args"] == {"lr": 0.1, "global_batch_size": 4}
        assert found.untaken == []

    def test_arguments_that_the_model_passes_on(self):
        found = settings({"model": of_class("WideLine")}, {"lr": 0.1, "width": 3})
        assert found.fit["model"] == of_class("WideLine", lr=0.1, width=3)

    def test_without_classes_nothing_takes_them(self):
        assert settings(None, {"lr": 0.1}).untaken == ["lr"]

    def test_a_class_of_the_context(self, tmp_path):
        (tmp_path / "settings_test_net.py").write_text(
            "from lightlib.core.module.module import Module\n"
            "class Net(Module):\n    def __init__(self, lr: float = 1.0):\n        super().__init__()\n",
            encoding="utf-8",
        )
        path = list(sys.path)
        try:
            found = settings(None, {"lr": 0.1}, entrypoint=":Net", context=tmp_path)
        finally:
            sys.modules.pop("settings_test_net", None)
        assert found.fit["model"] == {"class_path": "settings_test_net.Net", "init_args": {"lr": 0.1}}
        assert sys.path == path

    def test_nothing_is_imported_without_them(self):
        assert settings({"model": "nowhere.Net"}, {"model.lr": 0.1}).untaken == []

    def test_a_class_that_cannot_be_imported(self):
        what, expected, _ = error(settings, {"model": "nowhere.Net"}, {"lr": 0.1})
        assert what == "'nowhere.Net' cannot be imported: ModuleNotFoundError: No module named 'nowhere'"
        assert expected.startswith("module.Class")

    def test_a_class_of_lightning_needs_compat(self, tmp_path):
        (tmp_path / "settings_test_pl.py").write_text("import pytorch_lightning.callbacks\n")
        *_, fix = error(settings, {"model": "settings_test_pl.Net"}, {"lr": 0.1}, context=tmp_path)
        assert fix.startswith("start it by `lightlib compat run -m lightlib …`")


class TestLength:
    @pytest.mark.parametrize(
        ("length", "expected"),
        [
            ({"epochs": 3}, {"max_epochs": 3}),
            ({"batches": 100}, {"max_steps": 25}),
            ({"records": 100}, {"max_steps": 12}),
        ],
    )
    def test_the_length_replaces_the_limits_of_the_fit(self, length, expected):
        found = trainer(
            {"max_epochs": 7, "max_steps": 900},
            {"global_batch_size": 2},
            searcher=single(max_length=length),
            optimizations={"aggregation_frequency": 4},
        )
        assert {name: found[name] for name in ("max_epochs", "max_steps") if name in found} == expected

    def test_batches_of_a_step_in_the_fit_count(self):
        assert trainer({"accumulate_grad_batches": 5}, searcher=single(max_length={"batches": 100}))["max_steps"] == 20

    def test_without_a_length_the_fit_decides(self):
        found = trainer({"max_epochs": 7, "max_steps": 900})
        assert (found["max_epochs"], found["max_steps"]) == (7, 900)

    @pytest.mark.parametrize("hparams", [{}, {"global_batch_size": "64"}, {"global_batch_size": 0}])
    def test_records_need_a_batch_size(self, hparams):
        what, _, fix = error(trainer, None, hparams, searcher=single(max_length={"records": 100}))
        assert what.startswith("'searcher.max_length' is in records, and the hyperparameter 'global_batch_size' is")
        assert fix == "hyperparameters: {global_batch_size: 64}, or write searcher.max_length in batches or epochs."

    @pytest.mark.parametrize(
        ("time_metric", "expected"),
        [
            ("epochs", {"max_epochs": 16}),
            ("epoch", {"max_epochs": 16}),
            ("batches", {"max_steps": 8}),
            ("batch", {"max_steps": 8}),
            ("records", {"max_steps": 4}),
            ("step", {"max_steps": 16}),
        ],
    )
    @pytest.mark.parametrize("in_stopping", [False, True])
    def test_a_time_with_the_name_of_a_unit(self, time_metric, expected, in_stopping):
        searcher = halving(time_metric, 16.0)
        if in_stopping:
            time = {"time_metric": time_metric, "max_time": 16.0}
            searcher = {"name": "tpe", "metric": "val_loss", "max_trials": 4, "stopping": time}
        hparams = {"global_batch_size": 2}
        found = trainer(None, hparams, searcher=searcher, optimizations={"aggregation_frequency": 2})
        assert {name: found[name] for name in ("max_epochs", "max_steps") if name in found} == expected

    def test_a_time_in_another_metric(self):
        what, expected, fix = error(trainer, searcher=halving("tokens", 16))
        assert what == "'searcher.time_metric' is 'tokens', which is no unit of a fit."
        assert expected == "batches, epochs, records or steps."
        assert fix == "searcher.time_metric: batches"

    def test_a_fraction_of_an_epoch(self):
        what, _, fix = error(trainer, searcher=halving("epochs", 1.5))
        assert what == "'searcher.max_time' is 1.5, in epochs."
        assert fix == "searcher.max_time: 2"

    def test_a_length_without_a_unit(self):
        what, _, fix = error(trainer, searcher=single(max_length=16))
        assert what == "'searcher.max_length' is 16, without a unit, and the trials are fits."
        assert fix == "searcher.max_length: {batches: 16}"


class TestTrainer:
    def test_scheduling_unit(self):
        assert trainer()["log_every_n_steps"] == 100
        assert trainer(scheduling_unit=20)["log_every_n_steps"] == 20
        assert trainer({"log_every_n_steps": 7}, scheduling_unit=20)["log_every_n_steps"] == 7
        assert trainer({"log_every_n_steps": None}, scheduling_unit=20)["log_every_n_steps"] == 20

    def test_scheduling_unit_counts_batches_and_the_trainer_steps(self):
        assert trainer(scheduling_unit=20, optimizations={"aggregation_frequency": 4})["log_every_n_steps"] == 5

    @pytest.mark.parametrize(
        ("period", "expected"),
        [
            ({"batches": 50}, (50, None)),
            ({"records": 50}, (25, None)),
            ({"records": 1}, (1, None)),
            ({"epochs": 2}, (None, 2)),
        ],
    )
    def test_min_validation_period(self, period, expected):
        fit = {"val_check_interval": 0.5, "check_val_every_n_epoch": 7}
        found = trainer(fit, {"global_batch_size": 2}, min_validation_period=period)
        assert (found["val_check_interval"], found["check_val_every_n_epoch"]) == expected

    def test_records_per_epoch(self):
        """An epoch has 25 records, of which a batch has 2; incomplete batches do not count, as in Determined."""
        keys = {"records_per_epoch": 25, "optimizations": {"aggregation_frequency": 2}}
        searcher, hparams = single(max_length={"epochs": 3}), {"global_batch_size": 2}
        found = trainer(None, hparams, **keys, searcher=searcher, min_validation_period={"epochs": 1})
        assert (found["val_check_interval"], found["max_steps"], found.get("max_epochs")) == (12, 18, None)
        config = experiment({"trainer": {}}, **keys, searcher=searcher, min_checkpoint_period={"epochs": 2})
        assert checkpoint_period(found, config, hparams) == {"steps": 12}
        assert rungs_of_fit([1, 3], found, config, hparams) == ("steps", (6, 18))
        halves = experiment({"trainer": {}}, **keys, searcher=halving("epochs", 4))
        assert rungs_of_fit([2, 4], found, halves, hparams) == ("steps", (12, 25))

    def test_records_per_epoch_need_a_batch_size(self):
        what, _, fix = error(trainer, records_per_epoch=25, searcher=single(max_length={"epochs": 3}))
        assert what == (
            "'searcher.max_length' is in epochs of 25 records, as 'records_per_epoch' has it, and the hyperparameter "
            "'global_batch_size' is missing."
        )
        assert fix == (
            "hyperparameters: {global_batch_size: 64}, or delete records_per_epoch: then an epoch is a pass over the "
            "dataset."
        )

    def test_a_period_in_records_needs_a_batch_size(self):
        what, _, _ = error(trainer, min_validation_period={"records": 50})
        assert what.startswith("'min_validation_period' is in records")

    def test_without_a_period_the_fit_decides(self):
        assert trainer({"val_check_interval": 0.5})["val_check_interval"] == 0.5
        assert "check_val_every_n_epoch" not in trainer()

    def test_optimizations(self):
        found = trainer(optimizations={"aggregation_frequency": 4, "mixed_precision": "O1"})
        assert (found["accumulate_grad_batches"], found["precision"]) == (4, "16-mixed")
        assert "precision" not in trainer()
        assert trainer({"accumulate_grad_batches": 3})["accumulate_grad_batches"] == 3

    def test_slots(self):
        found = trainer({"devices": 8, "accelerator": "auto"}, devices=2, accelerator="cuda")
        assert (found["devices"], found["accelerator"]) == (2, "cuda")
        assert trainer({"accelerator": "cpu"}, accelerator="cuda")["accelerator"] == "cpu"

    @pytest.mark.parametrize("strategy", [None, "auto", "ddp"])
    def test_gradient_compression(self, strategy):
        keys = {"optimizations": {"gradient_compression": True}}
        assert trainer({"strategy": strategy}, devices=2, **keys)["strategy"] == {
            "class_path": "lightlib.strategies.DDPStrategy",
            "init_args": {"ddp_comm_hook": "fp16"},
        }
        assert trainer({"strategy": strategy}, devices=1, **keys)["strategy"] == strategy

    @pytest.mark.parametrize(("given", "hook"), [({}, "fp16"), ({"ddp_comm_hook": "bf16"}, "bf16")])
    def test_gradient_compression_of_a_ddp_strategy(self, given, hook):
        strategy = {"class_path": "DDPStrategy", "init_args": {"zero": True, **given}}
        found = trainer({"strategy": strategy}, devices=2, optimizations={"gradient_compression": True})["strategy"]
        assert found == {"class_path": "DDPStrategy", "init_args": {"zero": True, "ddp_comm_hook": hook}}

    def test_gradient_compression_of_another_strategy(self):
        keys = {"devices": 2, "optimizations": {"gradient_compression": True}}
        what, expected, _ = error(trainer, {"strategy": "fsdp"}, **keys)
        assert "trainer.strategy is 'fsdp' (str): only DDP compresses gradients." in what
        assert expected == "ddp, auto, or the class DDPStrategy."


class TestSeed:
    def test_the_seed_of_the_trial(self):
        assert settings(trial=3, seed=42).fit["seed_everything"] == trial_seed(42, 3)

    @pytest.mark.parametrize(("given", "kept"), [(7, True), (1, True), (0, True), (False, True), (None, False)])
    def test_a_seed_in_the_fit(self, given, kept):
        found = settings({"seed_everything": given}, seed=42).fit["seed_everything"]
        assert found == (given if kept else trial_seed(42, 0))

    def test_true_is_no_seed(self):
        assert settings({"seed_everything": True}, seed=42).fit["seed_everything"] == trial_seed(42, 0)

    @pytest.mark.parametrize(("given", "expected"), [("7", trial_seed(42, 0)), ("false", False)])
    def test_a_seed_in_the_file(self, given, expected):
        Path("base.yaml").write_text(f"seed_everything: {given}\n", encoding="utf-8")
        assert settings(entrypoint="base.yaml", seed=42).fit["seed_everything"] == expected

    def test_a_seed_that_is_searched(self):
        assert settings(None, {"seed_everything": 5}).fit["seed_everything"] == 5


class TestFits:
    """Fits that the command line builds from these settings."""

    @pytest.fixture(autouse=True)
    def program(self, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["lightlib"])

    @staticmethod
    def fit(given=None, hparams=None, *, model="Line", data="Records", **keys):
        fit = {"model": of_class(model), "data": of_class(data), **(given or {})}
        fit["trainer"] = {**QUIET, **fit.get("trainer", {})}
        found = settings(fit, hparams, **keys)
        return LightningCLI(args={"subcommand": "fit", "fit": found.fit}, save_config_callback=None)

    def test_the_length_in_batches(self):
        cli = self.fit(
            searcher=single(max_length={"batches": 5}),
            optimizations={"aggregation_frequency": 2},
            min_validation_period={"batches": 2},
        )
        assert (cli.trainer.global_step, cli.model.batches) == (2, 4)
        assert cli.trainer.accumulate_grad_batches == 2
        assert cli.model.validated[:2] == [2, 4]

    def test_the_length_in_epochs(self):
        cli = self.fit(None, {"global_batch_size": 8}, searcher=single(max_length={"epochs": 2}))
        assert (cli.trainer.current_epoch, cli.model.batches, cli.model.validated) == (2, 6, [3, 6])
        assert cli.datamodule.global_batch_size == 8

    def test_the_length_in_records_and_a_period_in_epochs(self):
        cli = self.fit(
            None,
            {"global_batch_size": 8},
            searcher=single(max_length={"records": 50}),
            min_validation_period={"epochs": 2},
        )
        assert (cli.model.batches, cli.model.validated) == (6, [6])

    def test_hyperparameters_reach_the_module(self):
        cli = self.fit(None, {"lr": 0.25, "layers.width": 8}, searcher=single(max_length={"batches": 1}))
        assert (cli.model.lr, cli.model.layers, cli.datamodule.lr) == (0.25, {"width": 8}, 0.25)

    def test_hyperparameters_reach_open_arguments_and_the_optimizer(self):
        cli = self.fit(
            {"optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 1.0}}},
            {"optimizer.class_path": "torch.optim.SGD", "optimizer.lr": 0.125},
            model="BareLine",
            searcher=single(max_length={"batches": 1}),
        )
        (optimizer,) = cli.trainer.optimizers
        assert isinstance(optimizer, torch.optim.SGD)
        assert optimizer.param_groups[0]["lr"] == 0.125
        cli = self.fit(None, {"rate.of": 3}, model="OpenLine", searcher=single(max_length={"batches": 1}))
        assert cli.model.rest == {"rate": {"of": 3}}

    def test_the_seed(self):
        def first(trial):
            cli = self.fit({"trainer": {"max_steps": 1}}, trial=trial, seed=42)
            return cli.config["fit"]["seed_everything"], cli.model.net.weight.tolist()

        (seed, weights), again, other = first(0), first(0), first(1)
        assert seed == trial_seed(42, 0)
        assert again == (seed, weights)
        assert other[0] == trial_seed(42, 1)
        assert other[1] != weights

    def test_the_strategy_that_compresses(self):
        fit = settings({"model": of_class("Line")}, devices=2, optimizations={"gradient_compression": True}).fit
        cli = LightningCLI(args=fit, run=False, save_config_callback=None)
        assert isinstance(cli.trainer.strategy, DDPStrategy)
        assert cli.config["trainer"]["strategy"]["init_args"]["ddp_comm_hook"] == "fp16"
        assert len(cli.trainer.devices) == 2
