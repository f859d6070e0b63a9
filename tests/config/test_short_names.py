"""Names and class paths: short, registered, of Lightning, of the program, and wrong ones."""

from __future__ import annotations

import copy
import importlib
from importlib.metadata import EntryPoint
from pkgutil import resolve_name

import pytest
import torch
from jsonargparse import ArgumentParser

from lightlib import registry, translations
from lightlib.callbacks import Callback
from lightlib.config.short_names import check_shape, class_path
from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.loggers import Logger
from lightlib.translations import translated
from lightlib_lightning import absent, objects


def loaded(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


class Counting(Callback):
    """A callback of the program."""


class Timer(Callback):
    """A callback of the program, with the name of one of ours."""


class AdamP(torch.optim.SGD):
    """An optimizer of the program."""


@pytest.fixture
def installed(monkeypatch):
    """Declare entry points as installed packages would."""

    def declare(group, **points):
        found = [EntryPoint(name, value, f"lightlib.{group}") for name, value in points.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: [one for one in found if one.group == group])

    return declare


@pytest.mark.parametrize(
    ("group", "name", "path"),
    [
        ("optimizers", "Adam", "torch.optim.Adam"),
        ("optimizers", "Lion", "lightlib.optim.Lion"),
        ("optimizers", "AdamP", f"{__name__}.AdamP"),
        ("schedulers", "StepLR", "torch.optim.lr_scheduler.StepLR"),
        ("schedulers", "ReduceLROnPlateau", "lightlib.cli.ReduceLROnPlateau"),
        ("callbacks", "EarlyStopping", "lightlib.callbacks.EarlyStopping"),
        ("callbacks", "Timer", "lightlib.callbacks.Timer"),
        ("callbacks", "Counting", f"{__name__}.Counting"),
        ("loggers", "csv", "lightlib.loggers.CSVLogger"),
        ("loggers", "CSVLogger", "lightlib.loggers.CSVLogger"),
        ("strategies", "FSDPStrategy", "lightlib.strategies.FSDPStrategy"),
        ("strategies", "single_device", "lightlib.strategies.single.SingleDeviceStrategy"),
        ("accelerators", "cpu", "lightlib.accelerators.CPUAccelerator"),
        ("precision", "MixedPrecision", "lightlib.precision.MixedPrecision"),
        ("environments", "SLURMEnvironment", "lightlib.launch.SLURMEnvironment"),
        ("profilers", "SimpleProfiler", "lightlib.profilers.SimpleProfiler"),
        ("callbacks", "lightning.pytorch.callbacks.Timer", "lightlib.callbacks.Timer"),
        ("callbacks", "package.of.mine.Timer", "package.of.mine.Timer"),
    ],
)
def test_the_path_of_a_name(group, name, path):
    assert class_path(group, name) == path
    if not path.startswith("package."):
        assert isinstance(loaded(path), type)


def test_a_name_of_an_installed_package(installed):
    installed("callbacks", counting=f"{__name__}:Counting")
    assert class_path("callbacks", "counting") == f"{__name__}.Counting"


def test_a_name_that_the_program_has_twice(monkeypatch):
    first = type("Twice", (Logger,), {"__module__": __name__})
    second = type("Twice", (Logger,), {"__module__": "tests.runs.plain"})
    for kind in (first, second):
        monkeypatch.setattr(importlib.import_module(kind.__module__), "Twice", kind, raising=False)
        kind.__abstractmethods__ = frozenset()
    with pytest.raises(
        MisconfigurationException, match=r"'Twice' is the name of several classes: .*\n.*\n  Fix: write"
    ):
        class_path("loggers", "Twice")


@pytest.mark.parametrize(
    ("group", "name", "words"),
    [
        ("callbacks", "EarlyStoping", "Unknown callback 'EarlyStoping'. Did you mean 'EarlyStopping'?"),
        ("callbacks", "Countin", "Unknown callback 'Countin'. Did you mean 'Counting'?"),
        ("loggers", "CSVLoger", "Unknown logger 'CSVLoger'. Did you mean 'CSVLogger'?"),
        ("strategies", "DDPStrateg", "Unknown strategy 'DDPStrateg'. Did you mean 'DDPStrategy'?"),
        ("optimizers", "sgd", "Unknown optimizer 'sgd'. Did you mean 'SGD'?"),
        ("profilers", "Simple", "Unknown profiler 'Simple'. Did you mean 'SimpleProfiler'?"),
    ],
)
def test_a_name_that_nothing_has(group, name, words):
    with pytest.raises(UnknownNameError) as caught:
        class_path(group, name)
    assert str(caught.value).startswith(words)
    assert str(caught.value).endswith("Fix: use one of these names, or a class path such as package.module.Class.")


@pytest.mark.parametrize(
    ("group", "value", "what", "fix"),
    [
        ("loggers", {"CSVLogger": {}}, "'CSVLogger' is written as a key", "class_path: CSVLogger"),
        ("callbacks", {"a.Own": None}, "'a.Own' is written as a key", "class_path: a.Own"),
        ("strategies", {"ddp": {"timeout": 3}}, "'ddp' is a name and not a class", "trainer.strategy: ddp"),
    ],
)
def test_arguments_in_a_wrong_place(group, value, what, fix):
    with pytest.raises(MisconfigurationException) as caught:
        check_shape(group, value)
    assert str(caught.value).startswith(what)
    assert str(caught.value).endswith(fix)


@pytest.mark.parametrize("value", [{}, {"lr": 0.1}, {"T_max": 3}, {"init_args": {"lr": 1}}, {"Other": {"lr": 1}}])
def test_arguments_of_a_class_that_was_said_before(value):
    check_shape("optimizers", value)


def test_the_names_that_are_offered_can_be_built():
    class Local(Callback):
        """A local class, which cannot be imported."""

    with pytest.raises(UnknownNameError) as caught:
        class_path("callbacks", "Unheard")
    assert "'Counting'" in str(caught.value)
    for name in ("Callback", "TimedProgressBar", "RichProgressBarTheme", "Local"):
        assert f"'{name}'" not in str(caught.value)
        with pytest.raises(UnknownNameError):
            class_path("callbacks", name)


@pytest.mark.parametrize(
    ("group", "name", "fix"),
    [
        ("strategies", "ddp", "trainer.strategy: ddp"),
        ("precision", "16-mixed", "trainer.precision: 16-mixed"),
        ("environments", "slurm", "trainer.plugins: slurm"),
    ],
)
def test_a_name_that_is_no_class(group, name, fix):
    with pytest.raises(MisconfigurationException) as caught:
        class_path(group, name)
    assert str(caught.value).startswith(f"{name!r} is a name and not a class")
    assert str(caught.value).endswith(f"Fix: {fix}")


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dadaptation", None)
    with pytest.raises(MisconfigurationException, match="Fix: pip install dadaptation"):
        class_path("optimizers", "DAdaptAdam")


@pytest.mark.parametrize("group", ["callbacks", "optimizers", "schedulers"])
def test_jsonargparse_takes_every_path(group):
    base = {
        "callbacks": Callback,
        "optimizers": torch.optim.Optimizer,
        "schedulers": torch.optim.lr_scheduler.LRScheduler,
    }[group]
    first = {"callbacks": set(), "optimizers": {"params"}, "schedulers": {"optimizer"}}[group]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(base, "one", skip=first, fail_untyped=False, instantiate=False)
    for name, place in registry.BUILT_IN[group].items():
        if place.partition(".")[0] in ("lightlib", "torch") and name not in NEEDS_MORE:
            path = class_path(group, name)
            given = parser.parse_object({"one": {"class_path": path, "init_args": ARGUMENTS.get(name, {})}})
            assert loaded(given.one.class_path) is loaded(path)


NEEDS_MORE = ("LambdaLR", "MultiplicativeLR")  # functions
ARGUMENTS = {
    **{key: {"total_steps": 9} for key in ("CosineAnnealingWarmupLR", "FlatAnnealingLR", "FlatAnnealingWarmupLR")},
    **{key: {"total_steps": 9} for key in ("LinearWarmupLR", "PolynomialWarmupLR", "WarmupStableDecayLR")},
    "CosineRestartLR": {"periods": [4]},
    "InverseSquareRootLR": {"warmup_steps": 4},
    "MultiStepWarmupLR": {"milestones": [4]},
    "ChainedScheduler": {"schedulers": []},
    "CosineAnnealingLR": {"T_max": 2},
    "CosineAnnealingWarmRestarts": {"T_0": 2},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.2},
    "EarlyStopping": {"monitor": "loss"},
    "ExpectedMetrics": {"expected": {"loss": 0.5}},
    "LearningRateScaler": {"base_batch_size": 8},
    "MetricCallback": {"metrics": {"class_path": "torchmetrics.MeanMetric"}},
    "ModelPruning": {"pruning_fn": "l1_unstructured"},
    "PredictionDump": {"path": "here"},
    "StochasticWeightAveraging": {"swa_lrs": 0.1},
    "TestTimeAugmentation": {"augmentations": ["torch.neg"]},
    "ThroughputMonitor": {"batch_size_fn": "builtins.len"},
    "ExponentialLR": {"gamma": 0.5},
    "GradientAccumulationScheduler": {"scheduling": {"0": 1}},
    "MultiStepLR": {"milestones": [1]},
    "OneCycleLR": {"max_lr": 0.1},
    "OnExceptionCheckpoint": {"dirpath": "here"},
    "ReduceLROnPlateau": {"monitor": "loss"},
    "SequentialLR": {"schedulers": [], "milestones": []},
    "StepLR": {"step_size": 2},
}

# translate


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("lightning.pytorch.callbacks.EarlyStopping", "lightlib.callbacks.EarlyStopping"),
        ("lightning.pytorch.callbacks.early_stopping.EarlyStopping", "lightlib.callbacks.EarlyStopping"),
        ("pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint", "lightlib.callbacks.ModelCheckpoint"),
        ("lightning.pytorch.callbacks.progress.TQDMProgressBar", "lightlib.callbacks.TQDMProgressBar"),
        ("lightning.pytorch.callbacks.progress.rich_progress.RichProgressBar", "lightlib.callbacks.RichProgressBar"),
        ("lightning.pytorch.callbacks.lambda_function.LambdaCallback", "lightlib.callbacks.LambdaCallback"),
        ("lightning.pytorch.callbacks.rich_model_summary.RichModelSummary", "lightlib.callbacks.RichModelSummary"),
        ("lightning.pytorch.loggers.csv_logs.CSVLogger", "lightlib.loggers.CSVLogger"),
        ("pytorch_lightning.loggers.TensorBoardLogger", "lightlib.loggers.TensorBoardLogger"),
        ("lightning.pytorch.strategies.ddp.DDPStrategy", "lightlib.strategies.DDPStrategy"),
        ("lightning.pytorch.strategies.FSDPStrategy", "lightlib.strategies.FSDPStrategy"),
        ("lightning.pytorch.plugins.MixedPrecision", "lightlib.precision.MixedPrecision"),
        ("lightning.pytorch.plugins.precision.amp.MixedPrecision", "lightlib.precision.MixedPrecision"),
        ("lightning.fabric.plugins.precision.HalfPrecision", "lightlib.precision.HalfPrecision"),
        ("lightning.pytorch.plugins.environments.SLURMEnvironment", "lightlib.launch.SLURMEnvironment"),
        ("lightning_fabric.plugins.environments.slurm.SLURMEnvironment", "lightlib.launch.SLURMEnvironment"),
        ("lightning.pytorch.profilers.simple.SimpleProfiler", "lightlib.profilers.SimpleProfiler"),
        ("lightning.pytorch.accelerators.CPUAccelerator", "lightlib.accelerators.CPUAccelerator"),
        ("lightning.pytorch.cli.ReduceLROnPlateau", "lightlib.cli.ReduceLROnPlateau"),
        ("lightning.pytorch.cli.LightningArgumentParser", "lightlib.cli.LightningArgumentParser"),
        ("lightning.LightningModule", "lightlib.LightningModule"),
        ("lightning.pytorch.core.module.LightningModule", "lightlib.LightningModule"),
        ("lightning.pytorch.LightningDataModule", "lightlib.LightningDataModule"),
        ("lightning.pytorch.trainer.trainer.Trainer", "lightlib.Trainer"),
        ("lightning.pytorch.utilities.CombinedLoader", "lightlib.CombinedLoader"),
        ("lightning.pytorch.demos.boring_classes.BoringModel", "lightlib_lightning.demos.BoringModel"),
        ("lightning.pytorch.demos.transformer.WikiText2", "lightlib_lightning.tools.text_demos.WikiText2"),
        ("lightning.pytorch.plugins.environments.LSFEnvironment", "lightlib_lightning.environments.LSFEnvironment"),
        ("lightning_fabric.Fabric", "lightlib.Fabric"),
    ],
)
def test_a_class_of_lightning_that_we_have(path, ours):
    assert translations.class_path(path) == ours
    assert isinstance(loaded(ours), type)


@pytest.mark.parametrize(
    "path",
    [
        "torch.optim.Adam",
        "Adam",
        "",
        "lightning",
        "lightning_utilities.core.enums.StrEnum",
        "lightning.nothing.Class",
        "my.lightning.pytorch.callbacks.EarlyStopping",
        "pytorch_lightning_bolts.callbacks.Printer",
    ],
)
def test_other_paths_stay(path):
    assert translations.class_path(path) == path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("lightning.pytorch.strategies.XLAStrategy", "Fix: use a CPU, CUDA or MPS device"),
        ("lightning.pytorch.loggers.LitLogger", "Expected: one of lightlib.loggers: AimLogger, "),
        ("lightning.fabric.plugins.environments.XLAEnvironment", "Expected: one of lightlib.launch: "),
    ],
)
def test_a_class_of_lightning_that_we_have_not(path, words):
    with pytest.raises(MisconfigurationException) as caught:
        translations.class_path(path)
    assert str(caught.value).startswith(f"{path!r} is a Lightning class with no counterpart in lightlib.\n")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("lightning.pytorch.callbacks.EarlyStoping", "lightning.pytorch.callbacks.EarlyStopping"),
        ("pytorch_lightning.loggers.CSVLoger", "pytorch_lightning.loggers.CSVLogger"),
        ("lightning.pytorch.Trianer", "lightning.pytorch.Trainer"),
        ("lightning.pytorch.plugins.environments.SlurmEnvironment", "environments.SLURMEnvironment"),
    ],
)
def test_a_path_that_lightning_has_not_either(path, near):
    with pytest.raises(MisconfigurationException, match=r"is no class of Lightning 2\.6\.") as caught:
        translations.class_path(path)
    assert f"{near}'?" in str(caught.value)


# translated


def test_a_whole_configuration():
    config = {
        "seed_everything": 1,
        "trainer": {
            "max_epochs": 2,
            "callbacks": [
                {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "loss"}},
                "pytorch_lightning.callbacks.Timer",
                {"class_path": "TerminateOnNaN"},
            ],
            "logger": {"class_path": "lightning.pytorch.loggers.csv_logs.CSVLogger", "init_args": {"save_dir": "."}},
            "strategy": "lightning.pytorch.strategies.DDPStrategy",
            "plugins": [
                {"class_path": "lightning.pytorch.plugins.environments.LSFEnvironment"},
                "lightning.fabric.plugins.environments.TorchElasticEnvironment",
                {
                    "class_path": "lightning.pytorch.plugins.environments.SLURMEnvironment",
                    "init_args": {"auto_requeue": True},
                },
            ],
            "profiler": "simple",
        },
        "model": {"class_path": "mine.Model", "init_args": {"text": "uses lightning.pytorch.Trainer", "size": 3}},
        "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1}},
        "lr_scheduler": {"class_path": "lightning.pytorch.cli.ReduceLROnPlateau", "init_args": {"monitor": "loss"}},
        "ckpt_path": None,
    }
    before = copy.deepcopy(config)
    found = translated(config)
    assert config == before
    assert found["trainer"]["callbacks"] == [
        {"class_path": "lightlib.callbacks.EarlyStopping", "init_args": {"monitor": "loss"}},
        "lightlib.callbacks.Timer",
        {"class_path": "TerminateOnNaN"},
    ]
    assert found["trainer"]["logger"]["class_path"] == "lightlib.loggers.CSVLogger"
    assert found["trainer"]["strategy"] == "lightlib.strategies.DDPStrategy"
    assert found["trainer"]["plugins"] == [
        "lsf",
        "torchrun",
        {"class_path": "lightlib.launch.SLURMEnvironment", "init_args": {"auto_requeue": True}},
    ]
    assert found["lr_scheduler"]["class_path"] == "lightlib.cli.ReduceLROnPlateau"
    for key in ("seed_everything", "model", "optimizer", "ckpt_path"):
        assert found[key] == config[key]
    assert translated(found) == found


@pytest.mark.parametrize("value", [None, 3, 0.5, True, "text", [], {}, ("lightning.Trainer",), {"a": [{"b": "c"}]}])
def test_what_names_no_class_stays(value):
    assert translated(value) == value


def test_a_typing_error_is_said_where_a_class_must_stand():
    wrong = "lightning.pytorch.callbacks.EarlyStoping"
    assert translated({"note": wrong}) == {"note": wrong}
    with pytest.raises(MisconfigurationException, match=r"EarlyStoping.* is no class of Lightning"):
        translated([{"class_path": wrong}])


def test_a_class_that_we_have_not_is_said_in_the_short_form_too():
    with pytest.raises(
        MisconfigurationException, match=r"XLAStrategy.* is a Lightning class with no counterpart in lightlib"
    ):
        translated({"trainer": {"strategy": "lightning.pytorch.strategies.XLAStrategy"}})


# all of Lightning's public names


def test_every_public_name_of_lightning_is_ours_or_has_a_replacement():
    for where, public in objects.names().items():
        for name in public.split():
            path = ".".join(("lightning", *filter(None, [where]), name))
            try:
                place, _, ours = translations.class_path(path).rpartition(".")
                assert place.partition(".")[0] != "lightning", path
                resolve_name(f"{place}:{ours}")
            except MisconfigurationException as error:
                assert "no counterpart in lightlib" in str(error), path  # noqa: PT017  it is one of two right answers
                assert name in absent.INSTEAD, path


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("lightning.pytorch.ModelCheckpoint", "lightning.pytorch.callbacks"),
        ("pytorch_lightning.callbacks.CSVLogger", "lightning.pytorch.loggers"),
        ("lightning.pytorch.callbacks.History", "lightlib.callbacks"),
    ],
)
def test_a_class_that_another_module_has(path, place):
    name = path.rpartition(".")[2]
    with pytest.raises(MisconfigurationException, match=rf"{path}.*: {place} has it") as caught:
        translations.class_path(path)
    fix = str(caught.value).rpartition("Fix: ")[2]
    assert fix == f"{place}.{name}"
    assert translations.class_path(fix).endswith(f".{name}")
