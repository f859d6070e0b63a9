"""LightningCLI: classes, functions and class paths; it builds and runs exactly its configuration."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml
from jsonargparse import Namespace, lazy_instance

from lightlib import registry
from lightlib.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightlib.callbacks.callback import Callback
from lightlib.cli import LightningCLI, instantiate_class
from lightlib.config.class_paths import arguments_with_class_paths
from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError
from lightlib.loggers import CSVLogger, TensorBoardLogger
from lightlib.precision import Precision
from lightlib.profilers import PyTorchProfiler, SimpleProfiler
from lightlib.report import PossibleUserWarning
from lightlib.strategies import DDPStrategy
from lightlib.testing import BoringModule
from tests.cli.parts import (
    QUIET,
    BentLine,
    Built,
    Counts,
    Plan,
    PlannedLine,
    PointsInTens,
    PointsOfLine,
    Shape,
    SteepLine,
    a_line,
    a_trainer,
    by_hand,
    sgd,
    some_points,
)
from tests.runs.plain import same_weights

pytestmark = pytest.mark.filterwarnings("ignore:No logger received a value")  # the runs are short
HERE = "tests.cli.parts"


def built(*words, **options):
    """Return the CLI built from arguments without a sub-command."""
    options = {"model_class": SteepLine, "datamodule_class": PointsOfLine, **options}
    return LightningCLI(args=["--seed_everything=7", *words], run=False, **options)


# running
def test_fit_is_a_plain_loop():
    cli = LightningCLI(SteepLine, PointsOfLine, args=["fit", *QUIET, "--model.lr=0.1", "--data.batch_size", "2"])
    assert cli.subcommand == "fit"
    assert cli.trainer.global_step == 16
    assert same_weights(cli.model, by_hand(SteepLine, sgd(0.1), size=2))


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_the_other_verbs_are_the_trainers_methods(verb):
    class CLI(LightningCLI):
        pass

    def result(self, **arguments):
        self.results = getattr(self.trainer, verb)(**arguments)

    setattr(CLI, verb, result)
    cli = CLI(SteepLine, PointsOfLine, args=[verb, *QUIET])
    torch.manual_seed(7)
    module = SteepLine()
    expected = getattr(Trainer(accelerator="cpu", logger=False, enable_progress_bar=False), verb)(
        module, PointsOfLine()
    )
    if verb == "predict":
        assert all(one.equal(other) for one, other in zip(cli.results, expected, strict=True))
    else:
        assert cli.results == expected


def test_weights_of_a_checkpoint_are_those_that_are_tested(capsys):
    fitted = LightningCLI(SteepLine, PointsOfLine, args=["fit", *QUIET])
    fitted.trainer.save_checkpoint("line.ckpt")
    tested = LightningCLI(SteepLine, PointsOfLine, args=["test", *QUIET, "--ckpt_path=line.ckpt", "--verbose=false"])
    assert same_weights(fitted.model, tested.model)
    assert "test_loss" not in capsys.readouterr().out


def test_a_module_may_have_the_loaders_itself():
    cli = LightningCLI(BoringModule, args=["fit", *QUIET, "--trainer.max_epochs=1"])
    assert cli.datamodule is None
    assert cli.trainer.global_step == 4


def test_hooks_around_a_verb_and_a_verb_of_the_subclass():
    seen = []

    class CLI(LightningCLI):
        def before_instantiate_classes(self):
            seen.append(("before_instantiate_classes", hasattr(self, "model")))

        def after_instantiate_classes(self):
            seen.append(("after_instantiate_classes", hasattr(self, "trainer")))

        def before_fit(self):
            seen.append("before_fit")

        def fit(self, model, datamodule, **rest):
            seen.append((model is self.model, datamodule is self.datamodule, sorted(rest)))

        def after_fit(self):
            seen.append("after_fit")

        def before_test(self):
            seen.append("never")

    CLI(SteepLine, PointsOfLine, args=["fit", *QUIET, "--ckpt_path=x.ckpt"])
    around = [("before_instantiate_classes", False), ("after_instantiate_classes", True), "before_fit"]
    assert seen == [*around, (True, True, ["ckpt_path", "resume", "weights_only"]), "after_fit"]


class Walker(Trainer):
    """Its Trainer has a verb of its own."""

    walked = ()

    def walk(self, model: Module, steps: int, speed: float = 1.0, datamodule: object = None):
        """Walk some `steps`.

        Args:
            model: Who walks.
            steps: How many.
            speed: How fast.
            datamodule: Where.
        """
        self.walked = (type(model), steps, speed, type(datamodule))


def test_a_subclass_adds_a_sub_command(capsys):
    class CLI(LightningCLI):
        @staticmethod
        def subcommands():
            return {**LightningCLI.subcommands(), "walk": {"model", "datamodule"}}

    cli = CLI(SteepLine, PointsOfLine, trainer_class=Walker, args=["walk", *QUIET, "--steps=3"])
    assert cli.trainer.walked == (SteepLine, 3, 1.0, PointsOfLine)
    with pytest.raises(SystemExit) as ended:
        CLI(SteepLine, PointsOfLine, trainer_class=Walker, args=["walk", *QUIET])
    assert ended.value.code == 2
    assert "steps" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        CLI(SteepLine, PointsOfLine, trainer_class=Walker, args=["--help"])
    assert "Walk some steps." in capsys.readouterr().out


def test_without_run_there_are_no_sub_commands():
    cli = built("--trainer.max_epochs=3", "--model.width", "4")
    assert (cli.subcommand, cli.trainer.max_epochs, cli.model.layer.in_features) == (None, 3, 4)
    assert cli.config.model.width == 4
    assert cli.config_init.model is cli.model
    assert cli.config_init.data is cli.datamodule
    assert not hasattr(cli.config_init, "subcommand")


def test_the_trainer_is_built_with_other_arguments():
    class CLI(LightningCLI):
        def instantiate_trainer(self, **kwargs):
            return super().instantiate_trainer(max_epochs=11, **kwargs)

    cli = CLI(SteepLine, PointsOfLine, run=False, args=[])
    assert cli.trainer.max_epochs == 11
    assert cli.instantiate_trainer(max_steps=5).max_steps == 5


# building
def test_functions_that_return_a_module_and_a_data_module():
    cli = built("--model.lr=0.25", "--data.count=12", model_class=a_line, datamodule_class=some_points)
    assert (type(cli.model), cli.model.lr, cli.datamodule.count) == (SteepLine, 0.25, 12)


def test_a_function_that_returns_a_trainer():
    cli = LightningCLI(SteepLine, PointsOfLine, trainer_class=a_trainer, args=["--trainer.epochs=4"], run=False)
    assert (cli.trainer.max_epochs, type(cli.trainer)) == (4, Trainer)


def test_a_trainer_without_callbacks_says_what_it_leaves_out():
    def no_callbacks(epochs: int = 1) -> Trainer:
        return Trainer(max_epochs=epochs, logger=False, accelerator="cpu")

    with pytest.warns(
        PossibleUserWarning, match="has no argument `callbacks`, so these are left out: SaveConfigCallback"
    ):
        LightningCLI(SteepLine, PointsOfLine, trainer_class=no_callbacks, args=[], run=False)


def test_any_class_by_its_class_path():
    options = {"model_class": None, "datamodule_class": None}
    words = [f"--model={HERE}.BentLine", "--model.hidden=7", f"--data={HERE}.PointsInTens", "--data.batch_size=5"]
    cli = built(*words, **options)
    assert (type(cli.model), cli.model.layer[0].out_features) == (BentLine, 7)
    assert (type(cli.datamodule), cli.datamodule.batch_size) == (PointsInTens, 5)
    cli = built("--model.class_path=SteepLine", "--model.init_args.lr=1", **options)
    assert (type(cli.model), cli.model.lr, cli.datamodule) == (SteepLine, 1, None)


def test_a_model_is_required_and_of_the_right_kind(capsys):
    for words, expected in [
        ([], "model"),
        ([f"--model={HERE}.PointsOfLine"], "PointsOfLine"),
        ([f"--model={HERE}.CurvedLine"], "CurvedLine"),
    ]:
        with pytest.raises(SystemExit) as ended:
            built(*words, model_class=None, datamodule_class=None)
        assert ended.value.code == 2
        assert expected in capsys.readouterr().err


def test_subclasses_of_the_classes_given(capsys):
    cli = built(f"--model={HERE}.BentLine", "--data=PointsInTens", subclass_mode_model=True, subclass_mode_data=True)
    assert (type(cli.model), type(cli.datamodule)) == (BentLine, PointsInTens)
    with pytest.raises(SystemExit):
        built("--model=lightlib.testing.BoringModule", "--data=PointsInTens", subclass_mode_model=True)
    assert "SteepLine" in capsys.readouterr().err


def test_dict_kwargs_are_arguments_that_no_signature_shows():
    model = {"class_path": f"{HERE}.BentLine", "init_args": {"hidden": 4}, "dict_kwargs": {"width": 3}}
    cli = built(f"--model={json.dumps(model)}", model_class=None)
    assert (cli.model.layer[0].out_features, cli.model.hparams.width) == (4, 3)


def test_callbacks_in_a_list_and_one_by_one():
    words = ["--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=val_loss"]
    words += ["--trainer.callbacks+=LearningRateMonitor", "--trainer.callbacks.logging_interval=step"]
    words += [f"--trainer.callbacks+={HERE}.Counts", "--trainer.callbacks.step=3"]
    stop, rates, counts = built(*words).trainer.callbacks[:3]
    assert (type(stop), stop.monitor) == (EarlyStopping, "val_loss")
    assert (type(rates), rates.logging_interval) == (LearningRateMonitor, "step")
    assert (type(counts), counts.step) == (Counts, 3)


def test_objects_of_every_kind_in_the_trainer():
    config = {
        "logger": [
            {"class_path": "CSVLogger", "init_args": {"save_dir": "here"}},
            {"class_path": "lightlib.loggers.TensorBoardLogger", "init_args": {"save_dir": "there", "name": "board"}},
        ],
        "strategy": {"class_path": "DDPStrategy", "init_args": {"find_unused_parameters": True}},
        "profiler": {"class_path": "SimpleProfiler", "init_args": {"filename": "times"}},
        "plugins": [{"class_path": "MixedPrecision", "init_args": {"precision": "bf16-mixed", "device": "cpu"}}],
        "callbacks": [{"class_path": "ModelCheckpoint", "init_args": {"save_top_k": 2, "monitor": "val_loss"}}],
        "accelerator": "cpu",
        "devices": 1,
    }
    trainer = built("--config", json.dumps({"trainer": config})).trainer
    assert [type(logger) for logger in trainer.loggers] == [CSVLogger, TensorBoardLogger]
    assert trainer.loggers[1].name == "board"
    assert type(trainer.strategy) is DDPStrategy
    assert trainer.precision == "bf16-mixed"
    assert type(trainer.profiler) is SimpleProfiler
    assert [c.save_top_k for c in trainer.callbacks if isinstance(c, ModelCheckpoint)] == [2]


def test_a_precision_that_type_checkers_do_not_know_reaches_the_trainer(monkeypatch):
    mine = Precision("mine", torch.float64, torch.float64, torch.float64)
    monkeypatch.setitem(registry._registered, ("precision", "mine"), lambda: mine)
    assert built("--trainer.precision=mine").trainer.precision_plugin is mine
    assert built("--trainer.precision=64").trainer.precision == "64-true"


def test_dataclasses_in_dataclasses():
    words = ["--model.plan.lr=0.5", "--model.plan.shape.bias=false", '--model.plan.shapes={"a": 1}', "--model.names+=x"]
    cli = built(*words, "--model.names+=y", model_class=PlannedLine)
    assert asdict(cli.model.plan) == asdict(Plan(0.5, {"a": 1}, Shape(3, False)))
    assert cli.model.names == ["x", "y"]
    assert cli.model.layer.bias is None


# subclasses
def test_groups_and_arguments_that_are_not_of_a_class():
    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            group = parser.add_argument_group("notes", "What to remember.")
            group.add_argument("--note.text", type=str, default="none")
            parser.add_argument("--stars", type=int, default=1)
            parser.add_class_arguments(Shape, "shape")
            parser.set_defaults({"trainer.max_epochs": 9, "model.lr": 0.75})

    cli = CLI(SteepLine, PointsOfLine, run=False, args=["--note.text=good", "--stars=5", "--shape.width=2"])
    assert (cli.config.note.text, cli.config.stars, cli.config_init.shape) == ("good", 5, Shape(2))
    assert (cli.trainer.max_epochs, cli.model.lr) == (9, 0.75)


def test_a_callback_that_is_always_there_is_configured_by_its_key():
    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            assert parser.add_lightning_class_args(Counts, "counts") == ["counts.step", "counts.name"]
            parser.add_lightning_class_args(Callback, "extra", subclass_mode=True, required=False)
            parser.set_defaults({"counts.name": "all"})

    words = [*QUIET, "--counts.step=2", "--extra=EarlyStopping", "--extra.monitor=train_loss"]
    cli = CLI(SteepLine, PointsOfLine, args=["fit", *words])
    counts, stop = (next(c for c in cli.trainer.callbacks if isinstance(c, kind)) for kind in (Counts, EarlyStopping))
    assert (counts.name, counts.total) == ("all", 16)
    assert stop.monitor == "train_loss"


def test_a_callback_that_is_not_asked_for_is_not_there():
    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_lightning_class_args(EarlyStopping, "stop", subclass_mode=True, required=False)

    cli = CLI(SteepLine, PointsOfLine, run=False, args=[])
    assert not any(isinstance(callback, EarlyStopping) for callback in cli.trainer.callbacks)


def test_other_classes_are_refused():
    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_lightning_class_args(Shape, "shape")

    expected = "expected: a subclass of Trainer, Module, DataModule or Callback"
    with pytest.raises(ArgumentTypeError, match=r"(?is)add_lightning_class_args got .*Shape.*" + expected):
        CLI(SteepLine, PointsOfLine, run=False, args=[])


# defaults of the Trainer
def test_other_defaults_for_the_trainer():
    always = Counts()
    defaults = {"max_epochs": 3, "logger": False, "callbacks": [always]}
    cli = built("--trainer.callbacks=LearningRateMonitor", trainer_defaults=defaults)
    assert (cli.trainer.max_epochs, cli.trainer.loggers) == (3, [])
    assert always in cli.trainer.callbacks
    assert any(isinstance(callback, LearningRateMonitor) for callback in cli.trainer.callbacks)
    assert built("--trainer.max_epochs=4", trainer_defaults={**defaults, "callbacks": always}).trainer.max_epochs == 4
    assert defaults["callbacks"] == [always]


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        {"class_path": "EarlyStopping", "init_args": {"monitor": "x", "patience": 7}},
        {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "x", "patience": 7}},
        lazy_instance(EarlyStopping, monitor="x", patience=7),
    ],
)
def test_default_callbacks_that_are_to_be_built(given, several):
    always = Counts()
    cli = built(trainer_defaults={"callbacks": [always, given] if several else given, "accelerator": "cpu"})
    stops = cli.trainer.early_stopping_callback
    assert (type(stops), stops.monitor, stops.patience) == (EarlyStopping, "x", 7)
    assert (always in cli.trainer.callbacks) == several


def test_a_default_callback_with_a_wrong_argument(capsys):
    wrong = {"class_path": "EarlyStopping", "init_args": {"monitor": "x", "patienc": 7}}
    with pytest.raises(SystemExit):
        built(trainer_defaults={"callbacks": wrong})
    assert "EarlyStopping has no argument 'patienc'. Did you mean 'patience'?" in capsys.readouterr().err


def test_defaults_by_names_and_class_paths_of_lightning():
    logger = {"class_path": "CSVLogger", "init_args": {"save_dir": "here"}}
    strategy = {"class_path": "lightning.pytorch.strategies.DDPStrategy"}
    cli = built(trainer_defaults={"logger": logger, "strategy": strategy, "accelerator": "cpu"})
    assert (type(cli.trainer.logger), type(cli.trainer.strategy)) == (CSVLogger, DDPStrategy)
    assert cli.config.trainer.logger.class_path == "lightlib.loggers.CSVLogger"


def test_the_name_of_a_class_is_known_before_it_was_imported():
    parser = LightningCLI(SteepLine, run=False, args=["--seed_everything=1"]).parser
    words = ["--trainer.logger=CSVLogger", "--trainer.logger", "TensorBoardLogger", "--trainer.logger+=csv"]
    words += ["--trainer.logger=False", "--trainer.logger", "[csv, {class_path: CSVLogger}]"]
    assert list(arguments_with_class_paths(words, parser.named)) == [
        "--trainer.logger=lightlib.loggers.CSVLogger",
        "--trainer.logger",
        "lightlib.loggers.TensorBoardLogger",
        "--trainer.logger+=csv",
        "--trainer.logger=False",
        "--trainer.logger",
        "[csv, {class_path: lightlib.loggers.CSVLogger}]",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("profiler", PyTorchProfiler(filename="trace")),
        ("logger", CSVLogger("logs", name="mine")),
        ("logger", [CSVLogger("logs", name="mine")]),
    ],
)
def test_an_object_as_default_of_the_trainer(name, value):
    cli = LightningCLI(SteepLine, PointsOfLine, trainer_defaults={name: value}, args=["fit", *QUIET[:1], *QUIET[2:]])
    found = getattr(cli.trainer, "loggers" if name == "logger" else name)
    assert found == (value if isinstance(value, list) else [value] if name == "logger" else value)
    assert cli.trainer.global_step == 8


def test_an_object_as_default_gives_way_to_what_is_configured():
    defaults = {"profiler": PyTorchProfiler(), "logger": CSVLogger("logs"), "strategy": DDPStrategy()}
    words = ["--trainer.logger=TensorBoardLogger", "--trainer.logger.save_dir=here"]
    cli = built("--trainer.profiler=simple", *words, trainer_defaults=defaults)
    assert type(cli.trainer.profiler) is SimpleProfiler
    assert [type(logger) for logger in cli.trainer.loggers] == [TensorBoardLogger]
    assert cli.trainer.strategy is defaults["strategy"]


def test_a_default_that_the_trainer_does_not_have():
    for value in (1, Counts()):
        with pytest.raises(Exception, match="max_epoch"):
            built(trainer_defaults={"max_epoch": value})


# links
def test_links_at_parsing_and_when_the_source_is_built():
    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.link_arguments("data.features", "model.width", apply_on="instantiate")
            parser.link_arguments("data.batch_size", "model.lr", compute_fn=lambda size: size / 100)

    cli = CLI(SteepLine, PointsOfLine, run=False, args=["--data.width=6", "--data.batch_size=50"])
    assert (cli.model.layer.in_features, cli.model.lr) == (6, 0.5)
    assert cli.model.hparams["width"] == 6


def test_a_link_between_classes_that_are_chosen():
    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.link_arguments(
                ("data.features", "data.batch_size"),
                "model.init_args.width",
                compute_fn=lambda width, size: width + size,
                apply_on="instantiate",
            )

    words = [f"--model={HERE}.SteepLine", f"--data={HERE}.PointsOfLine", "--data.batch_size=2", "--data.width=1"]
    assert CLI(run=False, args=words).model.layer.in_features == 3


def test_what_is_linked_cannot_be_given(capsys):
    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.link_arguments("data.width", "model.width")

    with pytest.raises(SystemExit):
        CLI(SteepLine, PointsOfLine, run=False, args=["--model.width=4"])
    assert capsys.readouterr().err == 'Linked "model.width" must be given via "data.width".\n'


# sources of arguments
def test_words_a_dictionary_and_a_namespace_say_the_same():
    words = ["fit", *QUIET, "--model.lr=0.5"]
    options = {"save_config_callback": None}
    told = LightningCLI(SteepLine, PointsOfLine, args=words, **options)
    quiet = {word[10:].split("=")[0]: yaml.safe_load(word.split("=")[1]) for word in QUIET[:-1]}
    config = {"subcommand": "fit", "fit": {"trainer": quiet, "model": {"lr": 0.5}, "seed_everything": 7}}
    given = LightningCLI(SteepLine, PointsOfLine, args=config, **options)
    again = LightningCLI(SteepLine, PointsOfLine, args=told.config, **options)
    assert isinstance(told.config, Namespace)
    assert same_weights(told.model, given.model)
    assert same_weights(told.model, again.model)


def test_a_dictionary_without_sub_commands():
    cli = LightningCLI(SteepLine, args={"trainer": {"max_epochs": 3, "callbacks": "LearningRateMonitor"}}, run=False)
    assert cli.trainer.max_epochs == 3
    assert any(isinstance(callback, LearningRateMonitor) for callback in cli.trainer.callbacks)


def test_arguments_in_two_places_are_said(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main.py", "--model.lr=2"])
    with pytest.warns(PossibleUserWarning, match=r"called with \['--model.lr=2'\], which is not read"):
        assert Built(SteepLine, PointsOfLine, args=["fit", *QUIET, "--model.lr=1"]).model.lr == 1
    assert built("--model.lr=1").model.lr == 1  # run=False: a program with options of its own
    cli = LightningCLI(SteepLine, PointsOfLine, run=False)
    assert cli.model.lr == 2


def test_a_sub_command_is_asked_for(capsys):
    for words in ([], ["--trainer.max_epochs=1"], ["fly"]):
        with pytest.raises(SystemExit) as ended:
            LightningCLI(SteepLine, PointsOfLine, args=words)
        assert ended.value.code == 2
        assert "fit" in capsys.readouterr().err


class Notes(Built):
    """Records the parsers to which arguments are added."""

    def add_arguments_to_parser(self, parser):
        self.made = [*getattr(self, "made", []), parser]


class ParsesOther(Notes):
    def parse_arguments(self, parser, args):
        super().parse_arguments(parser, ["validate", *args[1:]])


@pytest.mark.parametrize(
    ("kind", "args", "verb", "made"),
    [
        (Notes, ["fit", *QUIET], "fit", 1),
        (Notes, {"subcommand": "test", "test": {"trainer": {"logger": False}}}, "test", 1),
        (Notes, ["--config={fit: {trainer: {logger: false}}}", "fit"], "fit", 4),
        (ParsesOther, ["fit", *QUIET], "validate", 4),
    ],
)
def test_arguments_are_made_for_the_sub_command_that_is_asked_for(kind, args, verb, made):
    cli = kind(SteepLine, PointsOfLine, args=args)
    assert (cli.subcommand, len(cli.made)) == (verb, made)
    assert cli.trainer.logger is None


def test_instantiate_class():
    layer = instantiate_class((2, 3), {"class_path": "torch.nn.Linear", "init_args": {"bias": False}})
    assert (layer.weight.shape, layer.bias) == ((3, 2), None)
    one = instantiate_class(layer.parameters(), {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}})
    assert one.param_groups[0]["lr"] == 0.5
    assert isinstance(instantiate_class((), {"class_path": "torch.nn.Identity"}), torch.nn.Identity)


def test_objects_of_the_command_line_are_kept_as_they_are_built():
    cli = Built(SteepLine, PointsOfLine, args=["fit", *QUIET])
    rest = {"ckpt_path": None, "weights_only": None, "resume": None}
    assert cli.asked == {"model": cli.model, "datamodule": cli.datamodule, **rest}
    assert cli.config.fit.model.lr == cli.config_init.fit.model.lr


def test_the_command_line_gives_arguments_of_the_event_writer():
    words = ["--trainer.accelerator=cpu", "--trainer.logger=TensorBoardLogger", "--trainer.logger.save_dir=logs"]
    words += ["--trainer.logger.max_queue=3", "--trainer.logger.filename_suffix=.end"]
    cli = LightningCLI(BoringModule, run=False, args=words)
    logger = cli.trainer.logger
    assert type(logger) is TensorBoardLogger
    logger.log_metrics({"a": 1.0}, 0)
    assert logger.experiment.file_writer.event_writer._async_writer._byte_queue.maxsize == 3
    logger.finalize("success")
    (file,) = Path(logger.log_dir).iterdir()
    assert file.name.endswith(".end")
