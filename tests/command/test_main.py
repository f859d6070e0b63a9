"""A table of right and wrong `lightlib` command lines: their exit status, output and objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from lightlib import registry
from lightlib.command import main
from lightlib.version import __version__
from tests.command.project import CONFIG, status_of, written_project  # noqa: F401  the fixture
from tests.processes import programs

pytestmark = pytest.mark.usefixtures("project")

RUN = "--model model.Model --data data.Data --trainer.accelerator cpu"
DEV = f"{RUN} --trainer.fast_dev_run true"


class Line(NamedTuple):
    """One command line: its words, its exit status, and texts that must be printed."""

    words: str
    status: int
    printed: tuple[str, ...]


def line(words: str, status: int, *printed: str) -> Any:
    full = words.replace("RUN", RUN).replace("DEV", DEV).replace("CFG", "--config config.yaml")
    return pytest.param(Line(full, status, printed), id=words or "nothing")


LINES = [
    # which command
    line("", 2, "usage: lightlib COMMAND", "lightlib fit --config"),
    line("--help", 0, "run a model", "--allow PACKAGE"),
    line("-h", 0, "usage: lightlib COMMAND"),
    line("help", 0, "usage: lightlib COMMAND"),
    line("--version", 0, f"lightlib {__version__}\n"),
    line("fitt CFG", 2, "There is no command 'fitt'. Did you mean 'fit'?", "Fix: lightlib fit --config config.yaml"),
    line("xyz", 2, "There is no command 'xyz'.", "Expected: one of fit, validate,", "Fix: lightlib --help"),
    line("checkpiont inspect x", 2, "Did you mean 'checkpoint'?"),
    line("CFG", 2, "`--config` was given without a command.", "Fix: lightlib fit --config"),
    line("--trainer.max_epochs 3 fit", 2, "stands before the command.", "Fix: lightlib fit --trainer.max_epochs 3"),
    line("--template lm init", 2, "`--template` stands before the command.", "Fix: lightlib init --template lm"),
    line("CFG fit", 2, "on the wrong side of the sub-command.", "Fix: lightlib fit --config config.yaml"),
    line("fit test", 2, "unrecognized arguments: test"),
    # each command at work
    line("fit CFG", 0, "width 3, head Identity, seed 1", "SGD lr=0.5"),
    line("fit DEV", 0, "width 4", "SGD lr=0.5 [] ["),
    line("validate CFG", 0, "validate metric", "val_loss"),
    line("validate CFG --verbose false", 0, "single_device"),
    line("test CFG", 0, "test metric", "test_loss"),
    line("predict CFG --trainer.limit_predict_batches 1", 0, "predicts 4"),
    line("fit --help", 0, "usage: lightlib fit [--config FILE]", "--trainer.max_epochs MAX_EPOCHS", "of machines."),
    line("fit --model.help model.Model", 0, "--model.width WIDTH", "(type: int, default: 4)"),
    line("init new --template gan", 0, "Wrote two networks that play against each other", "cd new"),
    line("init --template clasifier", 2, "Unknown template 'clasifier'. Did you mean 'classifier'?"),
    line("init --tempate lm", 2, "unrecognized arguments: --tempate. Did you mean '--template'?"),
    line("init .", 2, "already has config.yaml, data.py, model.py", "Nothing was written."),
    line("plot nothing", 2, "'nothing' does not exist."),
    line("plot", 2, "the following arguments are required: RUN", "Fix: lightlib plot --help"),
    line("env", 0, "**Versions**", f"- lightlib: `{__version__}"),
    line("doctor --jsn", 2, "Did you mean '--json'?"),
    line("checkpoint", 2, "the following arguments are required: COMMAND"),
    line("checkpoint inspekt x", 2, "invalid choice: 'inspekt'. Did you mean 'inspect'?"),
    line("plot nowhere --x tim", 2, "invalid choice: 'tim'. Did you mean 'time'?"),
    line("checkpoint inspect nothing.ckpt", 1, "Error: There is no checkpoint 'nothing.ckpt'."),
    line("checkpoint verify nothing.ckpt", 1, "There is no checkpoint 'nothing.ckpt'."),
    line("checkpoint convert a b --to fyle", 2, "invalid choice: 'fyle'. Did you mean 'file'?"),
    line("checkpoint export --help", 0, "usage: lightlib checkpoint export", "--strip PREFIX"),
    # building
    line("fit DEV --model.width 7 --seed_everything 5", 0, "width 7, head Identity, seed 5"),
    line("fit DEV --model.head torch.nn.Softsign", 0, "head Softsign"),
    line("fit DEV --model.head torch.nn.PReLU --model.head.init 0.1", 0, "head PReLU"),
    line("fit DEV --optimizer AdamW --optimizer.lr 0.25", 0, "AdamW lr=0.25"),
    line("fit DEV --optimizer Lion --lr_scheduler StepLR --lr_scheduler.step_size 2", 0, "Lion lr=", "['StepLR']"),
    line("fit CFG --trainer.callbacks EarlyStopping --trainer.callbacks.monitor val_loss", 0, "'EarlyStopping'"),
    line("fit CFG --trainer.callbacks+=lightning.pytorch.callbacks.Timer", 0, "'Timer'"),
    line("fit CFG --config lightning.yaml", 0, "Adam lr=0.01 ['StepLR']", "EarlyStopping", "SingleDevice"),
    line("fit CFG --config other.yaml", 0, "width 5", "epochs 2"),
    line("fit --config epochs.yaml CFG", 0, "width 3", "epochs 1"),
    line("fit CFG --trainer.max_epochs 0 --config other.yaml", 0, "width 5", "epochs 2"),
    line("fit CFG --config other.yaml --trainer trainer.yaml", 0, "width 5", "epochs 4"),
    # keys that are misspelt
    line("fit DEV --trainer.max_epoch 3", 2, "'trainer.max_epoch' (on the command line)", "--trainer.max_epochs=3"),
    line("fit DEV --ckpt_pth x", 2, "Did you mean 'ckpt_path'?"),
    line("test CFG --trainer.max_epoch 3", 2, "is not an argument of trainer"),
    line("fit DEV --model.widht 3", 2, "has no argument 'widht'", "Did you mean 'width'?", "Fix: --model.width=3"),
    line("fit --config top.yaml", 2, "'trainr.max_epochs' (top.yaml, line 2)", "Did you mean 'trainer.max_epochs'?"),
    line("fit --config nested.yaml", 2, "'trainer.max_epoch' (nested.yaml, line 3)", "mean 'trainer.max_epochs'?"),
    line("fit --config arguments.yaml", 2, "no argument 'widht' (arguments.yaml, line 4)", "Fix: width: 3"),
    line("fit CFG --config callback_key.yaml", 2, "'patiense' (callback_key.yaml, line 4)", "Fix: patience: 2"),
    line("fit --config section.yaml", 2, "'fit' (section.yaml, line 1) is on", "--config section.yaml fit"),
    line("--config section.yaml fit DEV --model.width 2", 0, "width 2"),
    # names that are misspelt
    line("fit CFG --config callback.yaml", 2, "(callback.yaml, line 3)", ".EarlyStopping'?"),
    line("fit CFG --config keyed.yaml", 2, "keyed.yaml, line 2: 'EarlyStopping' is written as a key", "monitor: loss"),
    line("fit DEV --trainer.callbacks EarlyStoping", 2, "Unknown callback 'EarlyStoping'.", "'EarlyStopping'?"),
    line("fit DEV --trainer.callbacks lightning.pytorch.callbacks.EarlyStoping", 2, "is no class of Lightning 2.6."),
    line("fit DEV --trainer.logger lightning.pytorch.loggers.LitLogger", 2, "no counterpart in lightlib"),
    line("fit DEV --optimizer Adamm", 2, "Unknown optimizer 'Adamm'. Did you mean 'Adam'?"),
    line("fit DEV --optimizer Adam8bit", 2, "bitsandbytes, which is not installed", "Fix: pip install 'bitsandbytes>="),
    line("fit DEV --trainer.accelerator gpuu", 2, "Unknown accelerator 'gpuu'. Did you mean 'gpu'?"),
    line("fit RUN --trainer.strategy dpp", 2, "Unknown strategy 'dpp'. Did you mean 'ddp'?"),
    line("fit RUN --config dpp.yaml", 2, "  Configured: trainer.strategy (dpp.yaml, line 2).\n  Expected: "),
    line("fit RUN --data baddata.Data", 2, "data got 'baddata.Data' (on the command line): "),
    # values of the wrong type
    line("fit DEV --trainer.max_epochs ten", 2, "trainer.max_epochs got 'ten'", "Expected: int, float or null."),
    line("fit DEV --trainer.max_steps 1.5", 2, "trainer.max_steps got '1.5'"),
    line("fit --config wrong.yaml --model model.Model", 2, "(wrong.yaml, line 2)", "Expected: int, float or null."),
    line("fit CFG --config yes.yaml", 2, "model.Model got yes (yes.yaml, line 6)", 'Fix: name: "yes"'),
    line("fit CFG --config time.yaml", 2, "got 1:30:00 (time.yaml, line 4)", 'Fix: name: "1:30:00"'),
    line("fit --config one.yaml", 2, "A key is read as 1 (one.yaml, line 2), which is no name."),
    line("fit --config on.yaml", 2, "A key is read as True (on.yaml, line 1), which is no name."),
    line("fit DEV --model.width wide", 2, "width of model.Model got 'wide'"),
    line("fit DEV --trainer 3", 2, "Unable to load config '3'", "Configured: trainer (on the command line)."),
    line("fit DEV --seed_everything x", 2, "Expected: bool or int."),
    line("predict CFG --return_predictions fals", 2, "Expected: bool or null."),
    line("fit CFG --seed_everything=-1", 2, "got the seed -1", "Configured: seed_everything (on the command line)."),
    line("fit DEV --trainer.logger CSVLoger", 2, "Unknown logger 'CSVLoger'. Did you mean 'CSVLogger'?"),
    line("fit --print_completion=shtab-bash", 2, "is not a key of `lightlib fit`."),
    # missing arguments and files
    line("fit", 2, "model is missing.", "Fix: lightlib fit --model=…"),
    line("fit --config", 2, "--config: expected one argument"),
    line("fit --model", 2, "--model: expected one argument"),
    line("fit --model model.Classes", 2, "model.Classes (on the command line) is missing 'classes'."),
    line("fit DEV --optimizer.lr 3", 2, "name the class that has it first: --optimizer=my_module.MyClass"),
    line("fit DEV --lr_scheduler StepLR --lr_scheduler.step_size 2", 2, "an `lr_scheduler`, but no `optimizer`"),
    line("fit --model model.Model --trainer.max_epochs 1 --trainer.callbacks EarlyStopping "
         "--trainer.callbacks.monitor val_loss", 2, "there are no validation loaders, so nothing logs this metric"),
    line("fit DEV extra words", 2, "unrecognized arguments: extra words"),
    # classes that cannot be had
    line("fit --model modle.Model", 2, "No module named 'modle'"),
    line("fit --model model.Modle", 2, "has no attribute 'Modle'. Did you mean 'model.Model'?"),
    line("fit --model model", 2, "Expected a dot import path string: model."),
    line("fit --model syntax_bad.Model", 2, "(on the command line): invalid syntax (syntax_bad.py, line 1)"),
    line("fit --model raises.Model", 2, "model got 'raises.Model' (on the command line): no licence."),
    line("fit --model needs.Model", 2, "No module named 'not_there_at_all'"),
    line("fit --model data.Data", 2, "'data.Data' (on the command line): Import path does not corr"),
    line("fit --model model.NoModule", 2, "does not correspond to a subclass of Module."),
    line("fit --model model.make", 2, "does not correspond to a subclass of Module."),
    line("fit --model model.Model --data model.Model", 2, "does not correspond to a subclass of DataModule."),
    line("fit DEV --trainer.callbacks torch.optim.Adam", 2, "does not correspond to a subclass of Callback."),
    # files that cannot be read
    line("fit --config broken.yaml", 2, "broken.yaml, line 3, column 6: did not find expected ',' or ']'"),
    line("fit --config deeper.yaml", 2, "deeper.yaml, line 3, column 12: mapping values are not allowed in this"),
    line("fit --config deep.yaml", 2, "deep.yaml, line 1, column 107: this is nested more than 100 levels deep."),
    line("fit --config tab.yaml", 2, "tab.yaml, line 3, column 1: a tab stands in the indentation."),
    line("fit --config twice.yaml", 2, "twice.yaml, line 3, column 3: the key 'max_epochs' stands here again"),
    line("fit --config bomb.yaml", 2, "bomb.yaml, line 6, column 5: the values are more than 100000"),
    line("fit --config list.yaml", 2, "list.yaml holds a list at the top."),
    line("fit --config empty.yaml", 2, "empty.yaml holds nothing at the top."),
    line("fit --config latin.yaml", 2, "latin.yaml, line 1: the byte b'\\xe9' is not UTF-8."),
    line("fit --config folder.yaml", 2, "'folder.yaml' is a folder.", "folder.yaml/a.yaml"),
    line("fit --config conifg.yaml", 2, "'conifg.yaml' does not exist. Did you mean 'config.yaml'?"),
    line("fit --config memory://nothing.yaml", 2, "Path does not exist: 'memory://nothing.yaml'"),
    line("fit --config apply.yaml", 2, "line 1, column 8: the tag !!python/object/apply:os.system would run"),
    line("fit --config new.yaml", 2, "the tag !!python/object/new:subprocess.Popen would run Python code"),
    line("fit --config name.yaml", 2, "!!python/name:os.system would run Python code"),
    line("test CFG --ckpt_path nothing.ckpt", 2, "There is no checkpoint 'nothing.ckpt'."),
    # options of the command itself
    line("fit CFG --allow", 2, "--allow got ''."),
    line("fit CFG --allow model/x", 2, "--allow got 'model/x'."),
    line("fit CFG --allow torchvision", 2, "model got 'model.Model' (config.yaml, line 11)", "--allow model,"),
    line("fit CFG --allow model", 2, "data got 'data.Data' (config.yaml, line 15)"),
    line("fit CFG --allow model,data", 0, "width 3"),
    line("fit CFG --allow=model --allow data --config lightning.yaml", 0, "EarlyStopping"),
    line("fit DEV --allow model,data --model.head torch.nn.Softsign --optimizer Lion", 0, "head Softsign", "Lion lr="),
    line("fit DEV --allow model,data --model.head torch.hub.load", 2, "Importing 'torch.hub.load' is not allowed"),
    line("fit DEV --allow model,data --weights_only false", 2, "such a checkpoint can name any code"),
    line("fit CFG --config interpolated.yaml", 2, "got '${trainer.max_epochs}'", "Fix: lightlib fit --interpolate"),
    line("fit CFG --config interpolated.yaml --interpolate", 0, "width 1"),
    line("fit CFG --config interpolated_wrong.yaml --interpolate", 2, "(interpolated_wrong.yaml, line 3)"),
]  # fmt: skip
PASSED_ON = (  # texts of jsonargparse that are printed unchanged
    "--config: expected one argument",
    "--model: expected one argument",
    "Path does not exist: 'memory://nothing.yaml'",
    "Unable to load config '3'",
    "unrecognized arguments: extra words",
    "unrecognized arguments: test",
)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:The configuration's `optimizer`")
@pytest.mark.filterwarnings(r"ignore:\s*Hit failing import")  # by the help, of classes that other tests made up
@pytest.mark.parametrize("case", LINES)
def test_a_command_line(case: Line, capsys: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture) -> None:
    status = status_of(case.words)
    out, error = capsys.readouterr()
    said = out + error + caplog.text
    assert (status, [text for text in case.printed if text not in said]) == (case.status, []), said
    assert "Traceback" not in error
    assert not Path("canary").exists()
    if status == 2 and case.words and case.printed[0] not in PASSED_ON:
        assert "\n  Fix: " in error
        assert "\n  Expected: " in error


def predictions(root: str = "lightning_logs") -> dict[str, Any]:
    return {str(path): torch.load(path) for path in sorted(Path(root).rglob("predictions*/*"))}


def test_predict_writes_what_predict_step_returns_and_says_where(caplog: pytest.LogCaptureFixture) -> None:
    assert status_of("predict --config config.yaml --trainer.logger csv") == 0
    ((path, outputs),) = predictions().items()
    assert path == "lightning_logs/version_0/predictions/rank_0-loader_0.pt"
    assert [output.shape for output in outputs] == [(4, 3), (4, 3)]
    assert not outputs[0].requires_grad
    assert f"Predictions: {Path(path).parent.resolve()}/" in caplog.text


@pytest.mark.processes
def test_each_process_writes_its_predictions() -> None:
    words = "predict --config config.yaml --trainer.logger csv --trainer.devices 2 --trainer.strategy ddp_fork"
    done = programs.run("-m", "lightlib", *words.split())
    assert done.returncode == 0, done.stderr
    found = {Path(path).name: [len(output) for output in outputs] for path, outputs in predictions().items()}
    assert found == {"rank_0-loader_0.pt": [4], "rank_1-loader_0.pt": [4]}


def test_predictions_of_an_earlier_run_stay() -> None:
    for _ in range(2):
        assert status_of("predict --config config.yaml --trainer.logger false --trainer.default_root_dir here") == 0
    assert [Path(path).parent.name for path in predictions("here")] == ["predictions", "predictions-1"]


def test_predictions_that_are_not_wanted_are_not_written(caplog: pytest.LogCaptureFixture) -> None:
    assert status_of("predict --config config.yaml --trainer.logger csv --return_predictions false") == 0
    assert status_of("predict --config config.yaml --trainer.logger csv --model model.Silent") == 0
    assert predictions() == {}
    assert caplog.text.count("predict_step returned None for every batch") == 1


def test_there_are_enough() -> None:
    assert len(LINES) >= 50
    assert sum(one.values[0].status == 0 for one in LINES) >= 20


def test_an_optimizer_of_the_configuration_takes_the_place_of_the_models(capsys: pytest.CaptureFixture) -> None:
    with pytest.warns(UserWarning, match=r"`optimizer` takes the place of Model.configure_optimizers"):
        assert status_of(f"fit {DEV} --optimizer AdamW --optimizer.lr 0.25") == 0
    assert "AdamW lr=0.25" in capsys.readouterr().out


def test_verbose_says_what_overrides_what(caplog: pytest.LogCaptureFixture) -> None:
    assert status_of("fit --config config.yaml --config other.yaml --verbose") == 0
    said = caplog.text
    assert "trainer.max_epochs: 2 (other.yaml, line 2) instead of 1 (config.yaml, line 4)" in said
    assert "model.init_args.width: 5 (other.yaml, line 5) instead of 3 (config.yaml, line 13)" in said


@pytest.mark.filterwarnings("ignore:The configuration's `optimizer`")
def test_what_is_printed_can_be_run_again(capsys: pytest.CaptureFixture) -> None:
    assert status_of("fit --config config.yaml --model.width 6 --optimizer SGD --print_config") == 0
    printed = capsys.readouterr().out
    config = yaml.safe_load(printed)
    assert printed.startswith(f"# lightlib=={__version__}\n")
    assert config["model"]["init_args"]["width"] == 6
    assert config["trainer"]["max_epochs"] == 1
    assert config["data"] == {"class_path": "data.Data", "init_args": {"batch_size": 4, "count": 8}}
    assert config["optimizer"]["class_path"] == "torch.optim.SGD"
    Path("printed.yaml").write_text(printed, encoding="utf-8")
    assert status_of("fit --config printed.yaml --print_config") == 0
    assert yaml.safe_load(capsys.readouterr().out) == config
    assert not Path("lightning_logs").exists()
    assert "resume" in config  # an argument of fit alone
    assert status_of("test --config printed.yaml") == 0
    assert "test_loss" in capsys.readouterr().out
    Path("verbose.yaml").write_text("verbose: false\nresume: null\nresum: null\n")
    assert status_of("predict --config config.yaml --config verbose.yaml") == 2
    assert "'resum' (verbose.yaml, line 3) is not a key of `lightlib predict`" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:The configuration's `optimizer`")
def test_a_saved_configuration_gives_the_same_weights_again() -> None:
    kept = "--trainer.logger csv --trainer.enable_checkpointing true --trainer.max_epochs 3 --optimizer Adam"
    assert status_of(f"fit --config config.yaml --seed_everything true {kept}") == 0
    assert status_of("fit --config lightning_logs/version_0/config.yaml") == 0
    first, second = (
        torch.load(next(Path(f"lightning_logs/version_{run}/checkpoints").iterdir()), weights_only=True)["state_dict"]
        for run in (0, 1)
    )
    assert torch.equal(first["net.weight"], second["net.weight"])


def test_without_a_logger_the_configuration_that_was_read_is_left_as_it_is(
    capsys: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
) -> None:
    assert status_of("fit --config config.yaml") == 0
    assert Path("config.yaml").read_text(encoding="utf-8") == CONFIG
    assert "config.yaml is a configuration of this run and is left as it is" in caplog.text
    assert status_of(f"fit {RUN} --trainer.logger false --trainer.max_epochs 1") == 2
    assert "There is a configuration already" in capsys.readouterr().err


# as a program of its own
PROGRAM = """
import json, sys
from lightlib.command.main import main
status = main(sys.argv[1:])
heavy = sorted({"torch", "jsonargparse", "yaml", "numpy", "lightlib.core"} & set(sys.modules))
sys.stderr.write(json.dumps({"status": status, "modules": len(sys.modules), "heavy": heavy}))
"""
VERBS = {
    "fit": ("--config config.yaml", "width 3, head Identity, seed 1"),
    "validate": ("--config config.yaml", "val_loss"),
    "test": ("--config config.yaml", "test_loss"),
    "predict": ("--config config.yaml --trainer.limit_predict_batches 1", "predicts 4"),
    "plan": ("--config config.yaml --memory 1GB", "Use single_device"),
    "init": ("new --template gan", "cd new"),
    "plot": ("metrics.csv --format html", "Wrote curves.html"),
    "checkpoint": ("inspect weights.ckpt", "net.weight"),
    "experiment": ("run --help", "the experiment file"),
    "search": ("preview search.yaml", "random: 8 trials"),
    "doctor": ("--json", '"checks"'),
    "compat": ("status", "import lightning gives"),
    "fabric": ("run script.py", "1 process, 32-true"),
    "env": ("", f"- lightlib: `{__version__}"),
}


@pytest.mark.processes
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_starts_as_a_user_starts_it(verb: str) -> None:
    Path("metrics.csv").write_text("step,loss\n0,2.0\n1,1.0\n")
    Path("script.py").write_text(
        'import lightlib as L\nfabric = L.Fabric(accelerator="cpu")\n'
        'print(fabric.world_size, "process,", fabric.strategy.precision.name)\n'
    )
    torch.save({"state_dict": {"net.weight": torch.ones(2, 2)}}, "weights.ckpt")
    Path("search.yaml").write_text("fit: {trainer: {}}\nsearcher: {name: random, metric: a, max_trials: 8}\n")
    words, printed = VERBS[verb]
    done = programs.interpreter("-m", "lightlib", verb, *words.split())
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


def test_each_verb_is_started() -> None:
    assert set(VERBS) == {*main.RUNS, *main.commands()}


@pytest.mark.processes
@pytest.mark.parametrize("words", ["--help", "--version", "fitt", "init new", "init --template x"])
def test_what_needs_no_torch_does_not_import_it(words: str) -> None:
    done = programs.interpreter("-c", PROGRAM, *words.split())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stderr[done.stderr.rindex("{") :])
    assert found["heavy"] == []
    assert found["modules"] < 300  # torch alone brings a thousand: an answer comes at once


@pytest.mark.parametrize("verb", main._MODULES)
def test_ctrl_c_ends_a_command_without_a_traceback(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main.importlib, "import_module", interrupted)
    if verb == "fabric":  # it runs a script: where it was interrupted is of use
        with pytest.raises(KeyboardInterrupt):
            main.main([verb])
    else:
        assert main.main([verb]) == 130
        assert capsys.readouterr() == ("", "Interrupted.\n")


@pytest.mark.processes
def test_it_is_a_module_that_can_be_run() -> None:
    done = programs.interpreter("-m", "lightlib", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"lightlib {__version__}\n", "")
    done = programs.run("-m", "lightlib", "fit", "--config", "config.yaml", "--trainer.max_epoch", "3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "'trainer.max_epoch' (on the command line) is not an argument of trainer. Did you mean"
    )


@pytest.mark.processes
def test_completion_is_a_script() -> None:
    """In a new interpreter: the script has the arguments of every class that was imported."""
    done = programs.interpreter("-m", "lightlib", "--print_completion=shtab-bash")
    assert done.returncode == 0, done.stderr
    assert "_shtab_lightlib_fit_option_strings" in done.stdout


@pytest.mark.processes
def test_a_class_is_looked_up_where_the_command_was_started(capsys: pytest.CaptureFixture[str]) -> None:
    Path("configs").mkdir()
    Path("configs/run.yaml").write_text(CONFIG, encoding="utf-8")
    assert status_of("fit --config configs/run.yaml --trainer.logger csv") == 0
    assert "width 3" in capsys.readouterr().out


@pytest.mark.processes
def test_with_several_processes_the_error_of_the_first_that_failed_comes_last() -> None:
    words = [*RUN.split(), "--trainer.devices", "2", "--trainer.logger", "false", "--ckpt_path", "nowhere.ckpt"]
    done = programs.run("-m", "lightlib", "fit", *words, starts=1)
    lines = done.stderr.rstrip().splitlines()
    assert done.returncode == 1, done.stderr
    assert lines[-3] == "lightlib.errors.CheckpointError: There is no checkpoint 'nowhere.ckpt'."
    assert lines[-1] == "  Fix: correct the path; `ckpt_path=None` starts a new run."
    assert done.stderr.count(" failed first:\n") == 1
    assert "ended with exit code" not in done.stderr


class TestCommandsOfPackages:
    """An entry point of the group `lightlib.commands` adds a command."""

    MODULE = """
SECTION = "measure"
ABOUT = "count to a number"

def add_arguments(parser):
    parser.add_argument("number", type=int)

def run(arguments):
    print(*range(arguments.number))
    return 3
"""

    @pytest.fixture
    def declare(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
        (tmp_path / "counting_command.py").write_text(self.MODULE)
        monkeypatch.syspath_prepend(tmp_path)

        def declare(name: str) -> None:
            point = EntryPoint(name, "counting_command", "lightlib.commands")
            monkeypatch.setattr(registry, "entry_points", lambda group: (point,) if group == point.group else ())

        return declare

    def test_it_is_run_and_stands_in_the_help(
        self, declare: Callable[[str], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        declare("count")
        assert (main.main(["count", "4"]), capsys.readouterr().out) == (3, "0 1 2 3\n")
        main.main(["--help"])
        assert "measure\n  count       count to a number\n" in capsys.readouterr().out

    @pytest.mark.parametrize("name", ["compat", "plot", "fit"])
    def test_a_name_that_is_taken_is_refused(
        self, name: str, declare: Callable[[str], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        declare(name)
        assert main.main(["doctor", "--help"]) == 2
        assert f"The entry point {name!r} = 'counting_command'" in capsys.readouterr().err
