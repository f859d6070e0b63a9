"""Hyperparameters under the command line: configured values are saved, and rebuild the module."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from lightlib.cli import LightningCLI, instantiate_module
from lightlib.errors import CheckpointError
from lightlib.report import PossibleUserWarning
from tests.cli.parts import (
    QUIET,
    AroundLine,
    BentLine,
    Built,
    PointsInTens,
    PointsOfLine,
    Shelf,
    SteepLine,
    WithEncoder,
)
from tests.runs.plain import same_weights

pytestmark = pytest.mark.filterwarnings("ignore:No logger received a value")  # the runs are short
HERE = "tests.cli.parts"
ENCODER = '--model.encoder={"class_path": "torch.nn.Linear", "init_args": {"in_features": 3, "out_features": 2}}'
CONFIGURED = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 3, "out_features": 2}}


def fitted(*words, module=SteepLine, **options):
    """Return the CLI after `fit`, and the hyperparameters in its checkpoint."""
    cli = LightningCLI(module, PointsOfLine, args=["fit", *QUIET, *words], save_config_callback=None, **options)
    cli.trainer.save_checkpoint("line.ckpt")
    return cli, torch.load("line.ckpt", weights_only=True)["hyper_parameters"]


def test_what_was_configured_is_kept():
    cli, saved = fitted("--model.lr=0.5")
    assert saved == {"width": 3, "lr": 0.5, "_instantiator": "lightlib.cli.instantiate_module"}
    assert dict(cli.model.hparams) == saved
    again = SteepLine.load_from_checkpoint("line.ckpt")
    assert same_weights(again, cli.model)
    assert again.lr == 0.5
    assert SteepLine.load_from_checkpoint("line.ckpt", lr=0.25).lr == 0.25


def test_the_class_is_kept_where_it_was_chosen():
    cli, saved = fitted(f"--model={HERE}.BentLine", "--model.hidden=6", module=None)
    assert saved["_class_path"] == f"{HERE}.BentLine"
    assert saved["hidden"] == 6
    assert same_weights(BentLine.load_from_checkpoint("line.ckpt"), cli.model)


def test_a_class_within_another_class():
    cli, saved = fitted(f"--model={HERE}.Shelf.Line", "--model.hidden=6", module=None)
    assert (type(cli.model), saved["_class_path"]) == (Shelf.Line, f"{HERE}.Shelf.Line")
    assert same_weights(Shelf.Line.load_from_checkpoint("line.ckpt"), cli.model)


def test_class_paths_are_kept_in_place_of_objects():
    cli, saved = fitted(ENCODER, module=WithEncoder)
    assert saved["encoder"]["class_path"] == "torch.nn.Linear"
    assert saved["encoder"]["init_args"]["out_features"] == 2
    with pytest.raises(CheckpointError, match=r"(?s)its hyperparameters 'encoder' name classes, .*weights_only=False"):
        WithEncoder.load_from_checkpoint("line.ckpt")
    assert same_weights(WithEncoder.load_from_checkpoint("line.ckpt", weights_only=False), cli.model)
    with pytest.warns(match="'encoder' is a torch.nn.Module"):  # the module is saved as a hyperparameter now
        assert same_weights(WithEncoder.load_from_checkpoint("line.ckpt", encoder=nn.Linear(3, 2)), cli.model)


def test_a_chosen_class_with_objects_is_built_again():
    cli, saved = fitted(f"--model={HERE}.WithEncoder", ENCODER, module=None)
    assert saved["_class_path"] == f"{HERE}.WithEncoder"
    assert same_weights(WithEncoder.load_from_checkpoint("line.ckpt", weights_only=False), cli.model)
    assert same_weights(SteepLine.load_from_checkpoint("line.ckpt", weights_only=False), cli.model)


def test_a_module_in_a_module_keeps_its_own():
    inner = {"class_path": f"{HERE}.BentLine", "init_args": {"hidden": 2}}
    cli, saved = fitted(f"--model={HERE}.AroundLine", f"--model.inner={json.dumps(inner)}", module=None)
    assert type(cli.model) is AroundLine
    assert saved["inner"]["init_args"]["hidden"] == 2
    assert cli.model.layer.hparams["hidden"] == 2
    assert "inner" not in cli.model.layer.hparams


def test_a_module_in_one_of_the_same_class_keeps_its_own():
    around = {
        "class_path": f"{HERE}.AroundLine",
        "init_args": {"inner": {"class_path": f"{HERE}.SteepLine"}, "lr": 0.125},
    }
    words = [f"--model={HERE}.AroundLine", f"--model.inner={json.dumps(around)}", "--model.lr=0.5"]
    with pytest.warns(match="'inner' is a torch.nn.Module"):  # of the one inside: it is built as in a program
        cli, _ = fitted(*words, module=None)
    assert (cli.model.hparams["lr"], cli.model.layer.hparams["lr"]) == (0.5, 0.125)


def test_the_data_module_keeps_its_own():
    cli, _ = fitted(f"--data={HERE}.PointsInTens", "--data.batch_size=5", subclass_mode_data=True)
    content = torch.load("line.ckpt", weights_only=True)
    assert content["datamodule_hyper_parameters"]["batch_size"] == 5
    assert content["datamodule_hyper_parameters"]["_class_path"] == f"{HERE}.PointsInTens"
    assert PointsInTens.load_from_checkpoint("line.ckpt").batch_size == cli.datamodule.batch_size


def test_what_was_linked_is_kept():
    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.link_arguments("data.features", "model.width", apply_on="instantiate")
            parser.link_arguments("data.batch_size", "model.lr", compute_fn=lambda size: size / 10)

    cli = CLI(SteepLine, PointsOfLine, args=["fit", *QUIET, "--data.width=2"])
    assert (cli.model.hparams["width"], cli.model.hparams["lr"]) == (2, 0.4)


def test_without_support_the_arguments_themselves_are_kept():
    _, saved = fitted("--model.lr=0.5", load_from_checkpoint_support=False)
    assert saved == {"width": 3, "lr": 0.5}


def test_the_loggers_get_no_marks_of_the_command_line():
    words = [word for word in QUIET if "logger" not in word]
    words += ["--trainer.logger=csv", f"--model={HERE}.SteepLine", "--model.lr=0.5", f"--data={HERE}.PointsOfLine"]
    LightningCLI(args=["fit", *words])
    logged = yaml.safe_load(Path("lightning_logs/version_0/hparams.yaml").read_text())
    assert logged["lr"] == 0.5
    assert not [name for name in logged if name.startswith("_")]


# arguments of the model from a checkpoint
def test_a_checkpoint_fills_in_the_arguments_and_options_win():
    fitted("--model.lr=0.5", "--model.width=3")
    cli = Built(SteepLine, PointsOfLine, args=["fit", *QUIET, "--ckpt_path=line.ckpt"])
    assert cli.model.lr == 0.5
    cli = Built(SteepLine, PointsOfLine, args=["fit", *QUIET, "--model.lr=0.25", "--ckpt_path", "line.ckpt"])
    assert cli.model.lr == 0.25
    Path("run.yaml").write_text("model: {lr: 0.125}\n")
    cli = Built(SteepLine, PointsOfLine, args=["fit", "--config=run.yaml", *QUIET, "--ckpt_path=line.ckpt"])
    assert cli.model.lr == 0.125


def test_a_checkpoint_named_in_a_file_fills_in_the_arguments():
    fitted("--model.lr=0.5")
    Path("run.yaml").write_text("ckpt_path: line.ckpt\n")
    assert Built(SteepLine, PointsOfLine, args=["fit", "--config=run.yaml", *QUIET]).model.lr == 0.5


def test_a_checkpoint_tests_the_module_as_it_was():
    cli, _ = fitted(f"--model={HERE}.BentLine", "--model.hidden=9", module=None)
    words = ["test", *QUIET, f"--model={HERE}.BentLine", "--ckpt_path=line.ckpt", "--verbose=false"]
    tested = LightningCLI(None, PointsOfLine, args=words)
    assert same_weights(tested.model, cli.model)


def test_a_checkpoint_chooses_no_class(capsys):
    fitted(f"--model={HERE}.BentLine", module=None)
    with pytest.raises(SystemExit):
        LightningCLI(None, PointsOfLine, args=["test", *QUIET, "--ckpt_path=line.ckpt"])
    assert "model" in capsys.readouterr().err


class Activated(SteepLine):
    """Takes a function, and a module, by name."""

    def __init__(self, lr: float = 0.05, act: Callable = torch.relu, part: torch.nn.Module | None = None):
        super().__init__(lr=lr)
        self.act, self.part = act, part


@pytest.mark.parametrize(
    "hostile",
    [
        {"act": "canary.shout"},
        {"part": "canary.Shout"},
        {"part": {"class_path": "canary.Shout"}},
        {"part": "part.yaml"},
        {"part": ["canary.Shout"]},
    ],
    ids=str,
)
def test_a_checkpoint_imports_nothing(hostile, monkeypatch):
    monkeypatch.syspath_prepend(Path.cwd())
    Path("canary.py").write_text("import torch\nopen('sung', 'w')\nshout = print\nclass Shout(torch.nn.Module): pass\n")
    Path("part.yaml").write_text("class_path: canary.Shout\n")
    torch.save({"state_dict": {}, "hyper_parameters": {"lr": 0.5, **hostile}}, "hostile.ckpt")
    with pytest.warns(PossibleUserWarning, match=f"'{next(iter(hostile))}' of .*hostile.ckpt' is ignored"):
        cli = Built(Activated, PointsOfLine, args=["fit", *QUIET, "--ckpt_path=hostile.ckpt"])
    assert (cli.model.lr, cli.model.act, cli.model.part) == (0.5, torch.relu, None)
    given = [f"--model.{next(iter(hostile))}={'torch.tanh' if 'act' in hostile else 'null'}"]  # so no warning
    assert Built(Activated, PointsOfLine, args=["fit", *QUIET, *given, "--ckpt_path=hostile.ckpt"]).model.lr == 0.5
    assert not Path("sung").exists()


def test_what_a_checkpoint_does_not_have_is_no_matter():
    torch.save({"state_dict": {}}, "bare.ckpt")
    assert Built(SteepLine, PointsOfLine, args=["fit", *QUIET, "--ckpt_path=bare.ckpt"]).model.lr == 0.05


def test_instantiate_module():
    module = instantiate_module(WithEncoder, {"encoder": CONFIGURED, "lr": 0.5})
    assert module.layer[0].out_features == 2
    module = instantiate_module(SteepLine, {"_class_path": f"{HERE}.BentLine", "hidden": 3})
    assert type(module) is BentLine
    assert module.layer[0].out_features == 3


def test_a_checkpoint_of_lightnings_command_line_is_built_again():
    cli, _ = fitted(ENCODER, module=WithEncoder)
    content = torch.load("line.ckpt", weights_only=True)
    content["hyper_parameters"]["_instantiator"] = "lightning.pytorch.cli.instantiate_module"
    torch.save(content, "theirs.ckpt")
    assert same_weights(WithEncoder.load_from_checkpoint("theirs.ckpt", weights_only=False), cli.model)


class Noted(SteepLine):
    """Takes any arguments."""

    def __init__(self, lr: float = 0.05, **notes):
        super().__init__(lr=lr)
        self.save_hyperparameters()
        self.notes = notes


class Untested(LightningCLI):
    """Builds everything and tests nothing."""

    def test(self, **arguments):
        self.asked = arguments


def test_a_checkpoint_fills_in_arguments_that_no_signature_shows():
    name = f"--model={__name__}.Noted"
    fitted(name, "--model.dict_kwargs.note=3", "--model.lr=0.5", module=None)
    words = ["test", *QUIET, name, "--ckpt_path=line.ckpt"]
    model = Untested(None, PointsOfLine, args=words).model
    assert (model.lr, model.notes) == (0.5, {"note": 3})
    model = Untested(None, PointsOfLine, args=[*words, "--model.lr=0.25", "--model.dict_kwargs.note=4"]).model
    assert (model.lr, model.notes) == (0.25, {"note": 4})


def test_an_argument_that_a_model_no_longer_has_is_told_with_the_option_that_names_the_checkpoint():
    name = f"--model={HERE}.SteepLine"
    fitted(name, module=None)
    saved = torch.load("line.ckpt", weights_only=True)
    saved["hyper_parameters"]["depth"] = 1
    torch.save(saved, "line.ckpt")
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'") as caught:
        Untested(None, PointsOfLine, args=["test", *QUIET, name, "--ckpt_path=line.ckpt"])
    assert vars(caught.value)["__notes__"] == ["  Configured: model (--ckpt_path, line 1)."]
