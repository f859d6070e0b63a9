"""Configuration files: merged, overridden, printed and read again; Lightning's too."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch
import yaml

from lightlib.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightlib.cli import LightningCLI
from lightlib.command.train import run
from lightlib.loggers import CSVLogger
from lightlib.strategies import SingleDeviceStrategy
from tests.cli.parts import QUIET, Built, PlannedLine, PointsOfLine, SteepLine, by_hand
from tests.processes import programs
from tests.runs.plain import same_weights

pytestmark = pytest.mark.filterwarnings("ignore:No logger received a value")  # the runs are short
HERE = "tests.cli.parts"


def built(*words, kind=LightningCLI, **options):
    """Return the CLI built from arguments without a sub-command."""
    return kind(SteepLine, PointsOfLine, run=False, args=["--seed_everything=7", *words], **options)


def printed(capsys, call, *words, **options):
    """Return the output of a program that exits successfully."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        call(*words, **options)
    assert not ended.value.code
    return capsys.readouterr().out


def file(name, content):
    """Write a configuration and return its name."""
    Path(name).write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return name


# files, options, variables
def test_later_files_win_and_options_over_all():
    first = file("first.yaml", {"trainer": {"max_epochs": 2, "max_steps": 5}, "model": {"lr": 0.1, "width": 5}})
    second = file("second.json", '{"trainer": {"max_epochs": 3}, "model": {"lr": 0.2}}')
    cli = built("--config", first, "-c", second, "--model.lr=0.3", "--config", '{"data": {"count": 6}}')
    assert (cli.trainer.max_epochs, cli.trainer.max_steps) == (3, 5)
    assert (cli.model.lr, cli.model.layer.in_features, cli.datamodule.count) == (0.3, 5, 6)
    assert built("--model.lr=0.3", "--config", first).model.lr == 0.1  # the later one here is the file


def test_lists_are_replaced_and_added_to():
    stop = {"class_path": "EarlyStopping", "init_args": {"monitor": "a"}}
    first = file("first.yaml", {"trainer": {"callbacks": [stop]}})
    second = file("second.yaml", {"trainer": {"callbacks+": {"class_path": "LearningRateMonitor"}}})
    third = file("third.yaml", {"trainer": {"callbacks": [{"class_path": "LearningRateMonitor"}]}})

    def kinds(*words):
        callbacks = built(*words).trainer.callbacks
        return [type(c) for c in callbacks if isinstance(c, (EarlyStopping, LearningRateMonitor))]

    assert kinds("-c", first, "-c", second) == [EarlyStopping, LearningRateMonitor]
    assert kinds("-c", first, "-c", third) == [LearningRateMonitor]
    assert kinds("-c", third, "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=b") == [
        LearningRateMonitor,
        EarlyStopping,
    ]


def test_a_file_for_a_sub_command_and_one_for_all():
    for_fit = file("fit.yaml", {"trainer": {"max_epochs": 4}, "model": {"lr": 0.4}, "seed_everything": 5})
    for_all = file("all.yaml", {"fit": {"model": {"lr": 0.2}, "data": {"count": 3}}})
    cli = Built(SteepLine, PointsOfLine, args=["--config", for_all, "fit", "--config", for_fit])
    assert (cli.trainer.max_epochs, cli.model.lr, cli.datamodule.count) == (4, 0.4, 3)


def test_parts_of_a_configuration_in_files_of_their_own():
    file("model.yaml", {"width": 6, "lr": 0.6})
    file("data.yaml", {"class_path": f"{HERE}.PointsInTens", "init_args": {"batch_size": 3}})
    main = file("main.yaml", {"model": "model.yaml", "data": "data.yaml"})
    cli = built("-c", main, subclass_mode_data=True)
    assert (cli.model.lr, cli.model.layer.in_features, cli.datamodule.batch_size) == (0.6, 6, 3)
    file("short.yaml", {"plan": {"lr": 0.25, "shape": {"bias": False}}})
    assert LightningCLI(PlannedLine, run=False, args=["--model=short.yaml", "--seed_everything=1"]).model.lr == 0.25


def test_a_configuration_from_elsewhere():
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://tests/line.yaml", "w") as stream:
        stream.write("model: {lr: 0.125}\n")
    assert built("--config=memory://tests/line.yaml").model.lr == 0.125


def test_variables(monkeypatch):
    monkeypatch.setenv("PL_FIT__TRAINER__MAX_EPOCHS", "6")
    monkeypatch.setenv("PL_FIT__MODEL__LR", "0.6")
    monkeypatch.setenv("PL_FIT__CONFIG", file("run.yaml", {"data": {"count": 9}, "seed_everything": 3}))
    monkeypatch.setenv("PL_FIT__TRAINER__CALLBACKS", '[{"class_path": "LearningRateMonitor"}]')
    options = {"parser_kwargs": {"default_env": True, "fit": {"default_env": True}}}
    cli = Built(SteepLine, PointsOfLine, args=["fit", "--model.lr=0.7"], **options)
    assert (cli.trainer.max_epochs, cli.model.lr, cli.datamodule.count) == (6, 0.7, 9)
    assert any(isinstance(callback, LearningRateMonitor) for callback in cli.trainer.callbacks)
    assert Built(SteepLine, PointsOfLine, args=["fit", "--seed_everything=1"]).model.lr == 0.05


def test_variables_without_sub_commands(monkeypatch):
    monkeypatch.setenv("PL_CONFIG", file("run.yaml", {"data": {"count": 9}, "model": {"lr": 0.9}}))
    monkeypatch.setenv("PL_MODEL__LR", "0.6")
    monkeypatch.setenv("MY_MODEL__LR", "0.8")
    cli = built(parser_kwargs={"default_env": True})
    assert (cli.model.lr, cli.datamodule.count) == (0.6, 9)
    assert built(parser_kwargs={"default_env": True, "env_prefix": "MY"}).model.lr == 0.8


def test_files_that_are_always_read():
    always = file("always.yaml", {"fit": {"trainer": {"max_epochs": 8}}})
    file("fit.yaml", {"model": {"lr": 0.8}})
    options = {"default_config_files": [always], "fit": {"default_config_files": ["fit.yaml"]}}
    cli = Built(SteepLine, PointsOfLine, args=["fit", "--seed_everything=1"], parser_kwargs=options)
    assert (cli.trainer.max_epochs, cli.model.lr) == (8, 0.8)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("trainer:\n  max_epoch: 3\n", "'trainer.max_epoch' (always.yaml, line 2) is not an argument of trainer."),
        ("trainer:\n  max_epochs: ten\n", "trainer.max_epochs got 'ten' (always.yaml, line 2)."),
        ("trainer:\n  strategy: dpp\n", "  Configured: trainer.strategy (always.yaml, line 2)."),
        ("trainer:\n  max_epochs: [1\n", "always.yaml, line 2, column 17: did not find expected ',' or ']'."),
        ("trainer: !!python/name:os.system\n", "always.yaml, line 1, column 10: the tag !!python/name:os.system would"),
        ("trainer: 3\n", "'trainer' is 3 (always.yaml, line 1), but it is a group of arguments."),
        ("trainer:\n  callbacks: EarlyStoping\n", "always.yaml, line 2: Unknown callback 'EarlyStoping'."),
    ],
)
def test_a_mistake_in_a_file_that_is_always_read_has_its_place(content, expected, capsys):
    options = {"default_config_files": [file("always.yaml", content)]}
    try:
        built(parser_kwargs=options)
    except SystemExit:
        text = capsys.readouterr().err
    except ValueError as error:
        text = str(error)
    assert expected in text


def test_a_file_that_is_always_read_is_read_as_all_are():
    content = "\ufefftrainer:\r\nmodel:\r\n  lr: 8e-1\r\noptimizer:\r\n  class_path: Adam\r\n"
    options = {"default_config_files": [file("always.yaml", content)]}
    over = file("over.yaml", {"model": {"lr": "x"}})
    with pytest.warns(match="takes the place of"):
        cli = built(parser_kwargs=options)
    assert (cli.model.lr, cli.config.optimizer.class_path) == (0.8, "torch.optim.Adam")
    with pytest.raises(SystemExit):
        built("-c", over, parser_kwargs=options)
    sources = cli.parser.sources
    assert sources.where("model.lr") == "always.yaml, line 3"
    sources.add(sources.document("model: {lr: 1}", "later.yaml"))
    sources.add(sources.document(content, "always.yaml"), default=True)
    assert sources.where("model.lr") == "later.yaml, line 1"


def test_a_mistake_without_words_of_a_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["main.py"])
    options = {"default_config_files": [file("always.yaml", {"model": {"widht": 3}})]}
    with pytest.raises(SystemExit):
        LightningCLI(SteepLine, PointsOfLine, run=False, parser_kwargs=options)
    assert "'model.widht' (always.yaml, line 2)" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["omegaconf", "omegaconf+"])
def test_interpolation(mode):
    pytest.importorskip("omegaconf")
    config = {"trainer": {"max_epochs": 4}, "model": {"width": "${trainer.max_epochs}"}}
    config |= {"data": {"count": "${oc.decode:'12'}", "width": "${model.width}"}}
    options = {"parser_kwargs": {"parser_mode": mode, "fit": {"parser_mode": mode}}}
    cli = Built(SteepLine, PointsOfLine, args=["fit", "--config", file("run.yaml", config), *QUIET[:-2]], **options)
    assert (cli.model.layer.in_features, cli.datamodule.count, cli.datamodule.width) == (4, 12, 4)


# printed and read again
def test_the_printed_configuration_builds_the_same(capsys):
    def call(*words):
        return Built(SteepLine, PointsOfLine, args=["fit", *words], seed_everything_default=3)

    words = [*QUIET, "--model.lr=0.75", "--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=train_loss"]
    words += ["--optimizer=Adam", "--optimizer.lr=0.2", "--lr_scheduler=StepLR", "--lr_scheduler.step_size=3"]
    text = printed(capsys, call, *words, "--print_config")
    with pytest.warns(match="takes the place"):
        cli = call("--config", file("printed.yaml", text))
    assert (cli.model.lr, cli.trainer.callbacks[0].monitor) == (0.75, "train_loss")
    content = yaml.safe_load(text)
    assert content["trainer"]["callbacks"][0]["class_path"] == "lightlib.callbacks.EarlyStopping"
    assert content["optimizer"]["class_path"] == "torch.optim.Adam"
    assert content["optimizer"]["init_args"]["lr"] == 0.2
    assert content["seed_everything"] == 7
    assert printed(capsys, call, "--config", "printed.yaml", "--print_config") == text


def test_the_printed_configuration_of_a_class_shows_its_defaults(capsys):
    words = [f"--model={HERE}.BentLine", f"--data={HERE}.PointsInTens", "--print_config"]
    text = printed(capsys, LightningCLI, args=["fit", *words])
    content = yaml.safe_load(text)
    assert content["model"] == {"class_path": f"{HERE}.BentLine", "init_args": {"hidden": 5, "lr": 0.05, "width": 3}}
    assert content["data"]["init_args"] == {"batch_size": 10}
    assert "config" not in content
    assert text.startswith("# lightlib==")


@pytest.mark.processes
def test_completion_is_a_script():
    """In a new interpreter: the script has the arguments of every class that was imported."""
    pytest.importorskip("shtab")
    parser = built().parser
    newer = any("--print_completion" in action.option_strings for action in parser._actions)
    words = ["--print_completion=shtab-bash" if newer else "--print_shtab=bash"]
    program = (
        "from lightlib.cli import LightningCLI\nfrom tests.cli.parts import PointsOfLine, SteepLine\n"
        "LightningCLI(SteepLine, PointsOfLine, run=False)\n"
    )
    done = programs.interpreter("-c", program, *words)
    assert done.returncode == 0, done.stderr
    assert "--trainer.max_epochs" in done.stdout
    assert "--model.lr" in done.stdout


# Lightning's
LIGHTNING = """
# lightning.pytorch==2.6.0
seed_everything: 7
trainer:
  accelerator: cpu
  strategy:
    class_path: lightning.pytorch.strategies.SingleDeviceStrategy
    init_args:
      device: cpu
      accelerator: null
      checkpoint_io: null
      precision_plugin: null
  devices: auto
  num_nodes: 1
  precision: null
  logger:
    class_path: lightning.pytorch.loggers.CSVLogger
    init_args:
      save_dir: logs
      name: lines
      version: null
      prefix: ''
      flush_logs_every_n_steps: 100
  callbacks:
  - class_path: lightning.pytorch.callbacks.EarlyStopping
    init_args:
      monitor: val_loss
      min_delta: 0.0
      patience: 5
      verbose: false
      mode: min
      strict: true
      check_finite: true
      stopping_threshold: null
      divergence_threshold: null
      check_on_train_epoch_end: null
      log_rank_zero_only: false
  - class_path: lightning.pytorch.callbacks.ModelCheckpoint
    init_args:
      dirpath: null
      filename: null
      monitor: val_loss
      verbose: false
      save_last: true
      save_top_k: 1
      save_weights_only: false
      mode: min
      auto_insert_metric_name: true
      every_n_train_steps: null
      train_time_interval: null
      every_n_epochs: null
      save_on_train_epoch_end: null
      enable_version_counter: true
  - class_path: pytorch_lightning.callbacks.LearningRateMonitor
    init_args:
      logging_interval: epoch
      log_momentum: false
      log_weight_decay: false
  fast_dev_run: false
  max_epochs: 2
  min_epochs: null
  max_steps: -1
  min_steps: null
  max_time: null
  limit_train_batches: null
  limit_val_batches: null
  limit_test_batches: null
  limit_predict_batches: null
  overfit_batches: 0.0
  val_check_interval: null
  check_val_every_n_epoch: 1
  num_sanity_val_steps: null
  log_every_n_steps: null
  enable_checkpointing: null
  enable_progress_bar: false
  enable_model_summary: false
  accumulate_grad_batches: 1
  gradient_clip_val: null
  gradient_clip_algorithm: null
  deterministic: null
  benchmark: null
  inference_mode: true
  use_distributed_sampler: true
  profiler: null
  detect_anomaly: false
  barebones: false
  plugins: null
  sync_batchnorm: false
  reload_dataloaders_every_n_epochs: 0
  default_root_dir: null
  enable_autolog_hparams: true
  model_registry: null
model:
  class_path: tests.cli.parts.BareLine
  init_args:
    width: 3
data:
  class_path: tests.cli.parts.PointsOfLine
  init_args:
    count: 16
ckpt_path: null
weights_only: null
optimizer:
  class_path: torch.optim.Adam
  init_args:
    lr: 0.1
    betas:
    - 0.9
    - 0.999
    eps: 1.0e-08
    weight_decay: 0.0
    amsgrad: false
    foreach: null
    maximize: false
    capturable: false
    differentiable: false
    fused: null
lr_scheduler:
  class_path: torch.optim.lr_scheduler.StepLR
  init_args:
    step_size: 1
    gamma: 0.5
    last_epoch: -1
"""


def test_a_whole_configuration_of_lightning_runs_unchanged():
    cli = LightningCLI(args=["fit", "--config", file("run.yaml", LIGHTNING)])
    trainer = cli.trainer
    assert type(trainer.strategy) is SingleDeviceStrategy
    assert type(trainer.logger) is CSVLogger
    assert {EarlyStopping, ModelCheckpoint, LearningRateMonitor} <= {type(callback) for callback in trainer.callbacks}
    assert sorted(path.name for path in Path("logs/lines/version_0").iterdir())[:2] == ["checkpoints", "config.yaml"]
    assert Path("logs/lines/version_0/checkpoints/last.ckpt").exists()

    def configure(parameters):
        optimizer = torch.optim.Adam(parameters, lr=0.1)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    assert same_weights(cli.model, by_hand(type(cli.model), configure))


def test_the_same_by_the_command_lightlib():
    assert run(["fit", "--config", file("run.yaml", LIGHTNING), "--trainer.max_epochs=1", "--data.count=8"]) == 0
    saved = yaml.safe_load(Path("logs/lines/version_0/config.yaml").read_text())
    assert saved["trainer"]["max_epochs"] == 1
    assert saved["trainer"]["callbacks"][0]["class_path"] == "lightlib.callbacks.EarlyStopping"


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_class_paths_of_lightning_in_options(package):
    words = [f"--trainer.callbacks={package}.callbacks.EarlyStopping", "--trainer.callbacks.monitor=a"]
    logger = {"class_path": f"{package}.loggers.CSVLogger", "init_args": {"save_dir": "x"}}
    cli = built(
        *words, f"--trainer.logger={json.dumps(logger)}", f"--trainer.profiler={package}.profilers.SimpleProfiler"
    )
    assert type(cli.trainer.logger) is CSVLogger
    assert type(cli.trainer.callbacks[0]) is EarlyStopping
    assert type(cli.trainer.profiler).__module__.startswith("lightlib")


# one read and one parse
@pytest.mark.parametrize("words", [["--config", "run.yaml"], ["--config=run.yaml", "--ckpt_path=line.ckpt"]])
def test_a_configuration_file_is_read_once_and_composed_once(words, monkeypatch):
    LightningCLI(SteepLine, PointsOfLine, args=["fit", *QUIET]).trainer.save_checkpoint("line.ckpt")
    text = "model:\n  lr: 0.625\ntrainer:\n  callbacks:\n  - class_path: lightning.pytorch.callbacks.Timer\n"
    file("run.yaml", text)
    reads, parses = [], []

    def opening(path, *args, **kwargs):
        reads.append(Path(path).name if isinstance(path, (str, Path)) else path)
        return real_open(path, *args, **kwargs)

    real_open = io.open
    monkeypatch.setattr("io.open", opening)  # pathlib's
    monkeypatch.setattr("builtins.open", opening)
    for name in ("compose", "load", "safe_load"):  # that no value ends the process is checked first
        real = getattr(yaml, name)
        monkeypatch.setattr(
            yaml, name, lambda stream, *args, real=real, **kw: parses.append(stream) or real(stream, *args, **kw)
        )
    cli = Built(SteepLine, PointsOfLine, args=["test", *QUIET, *words])
    assert (cli.model.lr, type(cli.trainer.callbacks[0]).__name__) == (0.625, "Timer")
    assert reads.count("run.yaml") == 1
    assert [stream for stream in parses if "lightning.pytorch" in str(stream)] == [text]


def test_a_file_that_names_itself_is_refused(capsys):
    file("run.yaml", "config: run.yaml\nmodel:\n  lr: 0.5\n")
    with pytest.raises(SystemExit):
        built("--config=run.yaml")
    assert "run.yaml" in capsys.readouterr().err


def test_relative_paths_in_a_file_start_in_its_folder():
    Path("configs").mkdir()
    file("configs/model.yaml", {"lr": 0.75})
    file("configs/run.yaml", {"model": "model.yaml"})
    here = Path.cwd()
    assert built("--config=configs/run.yaml").model.lr == 0.75
    assert Path.cwd() == here


def test_the_loader_of_jsonargparse_is_left_alone():
    import jsonargparse

    before = jsonargparse.get_loader("yaml")
    cli = built("--model.lr=0.5", parser_kwargs={"parser_mode": "yaml"})
    assert jsonargparse.get_loader("yaml") is before
    assert "lr: 0.5" in cli.parser.dump(cli.config)
