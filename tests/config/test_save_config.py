"""The configuration of a run next to its logs: it repeats the run, and is never overwritten."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
import yaml

from lightlib.cli import LightningCLI, SaveConfigCallback
from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException
from tests.cli.parts import QUIET, BareLine, PointsOfLine, SteepLine
from tests.processes.ranks import ranks
from tests.runs.plain import same_weights

pytestmark = pytest.mark.filterwarnings("ignore:No logger received a value")  # the runs are short
LOGGED = [*(word for word in QUIET if "logger" not in word), "--trainer.logger=csv"]
RUN = Path("lightning_logs/version_0")


def fitted(*words, module=SteepLine, kind=LightningCLI, verb="fit", **options):
    """Return the CLI after a run."""
    return kind(module, PointsOfLine, args=[verb, *words], **options)


def test_it_repeats_the_run_bit_for_bit(capsys):
    words = [*LOGGED[:-2], "--trainer.logger=csv", "--optimizer=Adam", "--optimizer.lr=0.03", "--data.batch_size=3"]
    words += ["--lr_scheduler=ExponentialLR", "--lr_scheduler.gamma=0.7", "--trainer.callbacks=LearningRateMonitor"]
    with pytest.raises(SystemExit):
        fitted(*words, "--print_config", module=BareLine)
    Path("printed.yaml").write_text(capsys.readouterr().out)
    first = fitted("--config=printed.yaml", module=BareLine)
    again = fitted(f"--config={RUN / 'config.yaml'}", module=BareLine)
    assert same_weights(first.model, again.model)
    assert Path(first.trainer.log_dir) == RUN.absolute()
    saved = [Path(cli.trainer.log_dir, "config.yaml").read_text() for cli in (first, again)]
    assert saved[0] == saved[1]
    assert isinstance(yaml.safe_load(saved[0])["seed_everything"], int)
    assert first.trainer.callback_metrics["train_loss"].equal(again.trainer.callback_metrics["train_loss"])


def test_a_seed_that_nobody_chose_is_in_it(monkeypatch):
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    words = [word for word in LOGGED if "seed" not in word]
    one, other = fitted(*words), fitted(*words, "--seed_everything=true")
    seeds = [
        yaml.safe_load(Path(cli.trainer.log_dir, "config.yaml").read_text())["seed_everything"] for cli in (one, other)
    ]
    assert seeds[0] != seeds[1]
    assert all(type(seed) is int for seed in seeds)
    again = fitted(f"--config={one.trainer.log_dir}/config.yaml")
    assert same_weights(one.model, again.model)
    assert not same_weights(one.model, other.model)


def test_no_seed_and_a_default_one():
    words = [word for word in LOGGED if "seed" not in word]
    torch.manual_seed(3)
    one = fitted(*words, "--seed_everything=false")
    torch.manual_seed(3)
    other = fitted(*words, seed_everything_default=False)
    assert same_weights(one.model, other.model)
    assert yaml.safe_load(Path(RUN, "config.yaml").read_text())["seed_everything"] is False
    assert same_weights(fitted(*words, seed_everything_default=7).model, fitted(*LOGGED).model)


def test_it_holds_every_default_and_no_verb():
    fitted(*LOGGED)
    saved = yaml.safe_load(Path(RUN, "config.yaml").read_text())
    assert {"seed_everything", "trainer", "model", "data", "ckpt_path"} <= set(saved)
    assert {"config", "subcommand"}.isdisjoint(saved)
    assert saved["trainer"]["gradient_clip_val"] is None
    assert saved["model"] == {"width": 3, "lr": 0.05}
    assert saved["data"]["count"] == 16


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_other_verbs_save_it_as_well(verb):
    fitted(*LOGGED, "--return_predictions=false" if verb == "predict" else "--verbose=false", verb=verb)
    assert "ckpt_path" in yaml.safe_load(Path(RUN, "config.yaml").read_text())


def test_another_runs_is_not_overwritten():
    fitted(*QUIET)
    before = Path("config.yaml").read_text()
    with pytest.raises(
        RuntimeError, match=r"There is a configuration already: '.*config.yaml'. It is another run's record"
    ):
        fitted(*QUIET, "--model.lr=0.5")
    with pytest.raises(MisconfigurationException, match="a folder of its own for each run"):
        fitted(*QUIET)
    assert Path("config.yaml").read_text() == before
    fitted(*QUIET, "--model.lr=0.5", save_config_kwargs={"overwrite": True})
    assert yaml.safe_load(Path("config.yaml").read_text())["model"]["lr"] == 0.5


def test_another_name_and_nothing_at_all():
    fitted(*LOGGED, save_config_kwargs={"config_filename": "run.yaml"})
    assert [path.name for path in RUN.glob("*.yaml") if path.name != "hparams.yaml"] == ["run.yaml"]
    fitted(*QUIET, save_config_callback=None)
    fitted(*QUIET, "--trainer.fast_dev_run=1")
    assert not list(Path().glob("*.yaml"))


def test_it_is_written_once_for_several_verbs():
    class CLI(LightningCLI):
        def after_fit(self):
            self.trainer.test(self.model, datamodule=self.datamodule, verbose=False)

    cli = fitted(*LOGGED, kind=CLI)
    assert "test_loss" in cli.trainer.callback_metrics
    assert not Path(RUN, "config-1.yaml").exists()


def test_several_files_stay_several():
    Path("model.yaml").write_text("width: 3\nlr: 0.5\n")
    Path("run.yaml").write_text("model: model.yaml\ndata: {count: 8}\n")
    fitted("--config=run.yaml", *LOGGED, save_config_kwargs={"multifile": True})
    assert yaml.safe_load(Path(RUN, "config.yaml").read_text())["model"] == "model.yaml"
    assert yaml.safe_load(Path(RUN, "model.yaml").read_text()) == {"width": 3, "lr": 0.5}
    saved = fitted(f"--config={RUN / 'config.yaml'}", *LOGGED)
    assert saved.model.lr == 0.5


def test_several_files_replace_links_and_do_not_follow_them(tmp_path):
    Path("model.yaml").write_text("width: 3\nlr: 0.5\n")
    Path("run.yaml").write_text("model: model.yaml\ndata: {count: 8}\n")
    (tmp_path / "victim").write_text("precious")
    Path(RUN).mkdir(parents=True)
    Path(RUN, "model.yaml").symlink_to(tmp_path / "victim")
    logger = ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=.", "--trainer.logger.version=0"]
    fitted("--config=run.yaml", *LOGGED[:-1], *logger, save_config_kwargs={"multifile": True})
    assert yaml.safe_load(Path(RUN, "model.yaml").read_text()) == {"width": 3, "lr": 0.5}
    assert (tmp_path / "victim").read_text() == "precious"


class Elsewhere(SaveConfigCallback):
    """Logs the configuration in place of writing a file."""

    saved = ()

    def save_config(self, trainer, pl_module, stage):
        """Record the call, and log the configuration."""
        type(self).saved = (*self.saved, (type(pl_module).__name__, stage))
        trainer.logger.log_hyperparams({"config": self.parser.dump(self.config, skip_none=False)})


def test_a_subclass_saves_it_elsewhere(monkeypatch):
    monkeypatch.setattr(Elsewhere, "saved", ())
    fitted(*LOGGED, save_config_callback=Elsewhere)
    assert Elsewhere.saved == (("SteepLine", "fit"),)
    assert Path(RUN, "config.yaml").exists()
    logged = yaml.safe_load(Path(RUN, "hparams.yaml").read_text())["config"]
    assert yaml.safe_load(logged)["model"]["lr"] == 0.05
    fitted(*LOGGED, save_config_callback=Elsewhere, save_config_kwargs={"save_to_log_dir": False})
    assert len(Elsewhere.saved) == 2
    assert not Path("lightning_logs/version_1/config.yaml").exists()


def test_saving_nowhere_is_refused():
    with pytest.raises(MisconfigurationException, match="save_to_log_dir=False, and nothing would be saved"):
        fitted(*LOGGED, save_config_kwargs={"save_to_log_dir": False})


def test_a_run_that_goes_on_keeps_it():
    words = [*(word for word in LOGGED if "checkpointing" not in word), "--ckpt_path=auto"]
    first = fitted(*words)
    folder = Path(first.trainer.log_dir)
    before = (folder / "config.yaml").read_bytes()
    fitted(*words)
    assert not (folder / "config-1.yaml").exists()
    going_on = fitted(*words, "--trainer.max_epochs=4")
    assert going_on.trainer.current_epoch == 4
    assert (folder / "config.yaml").read_bytes() == before
    assert yaml.safe_load((folder / "config-1.yaml").read_text())["trainer"]["max_epochs"] == 4


def in_one_of_two(rank, folder):
    """One of two processes of a run."""
    os.chdir(folder)
    sys.argv = ["main.py"]
    words = [*(word for word in LOGGED if "seed" not in word), "--trainer.strategy=ddp", "--trainer.devices=2"]
    cli = fitted(*words, module=SteepLine)
    return cli.config.fit.seed_everything, cli.model.layer.weight.tolist(), cli.trainer.log_dir


@pytest.mark.processes
def test_two_processes_write_it_once(tmp_path):
    (seed, weights, folder), other = ranks(2, in_one_of_two, str(tmp_path))
    assert other == (seed, weights, folder)
    assert [path.name for path in Path(folder).glob("config*")] == ["config.yaml"]
    assert yaml.safe_load(Path(folder, "config.yaml").read_text())["seed_everything"] == seed


def test_a_trainer_of_a_subclass_is_saved_by_its_arguments():
    class Longer(Trainer):
        def __init__(self, *args, extra: int = 2, **kwargs):
            super().__init__(*args, **kwargs)
            self.extra = extra

    cli = fitted(*LOGGED, "--trainer.extra=5", trainer_class=Longer)
    assert cli.trainer.extra == 5
    assert yaml.safe_load(Path(RUN, "config.yaml").read_text())["trainer"]["extra"] == 5


@pytest.mark.parametrize(
    "words", [(), ("--optimizer=Adam", "--lr_scheduler=ExponentialLR", "--lr_scheduler.gamma=0.7")]
)
def test_it_writes_the_same_in_another_process(words):
    """There the callback arrives with the parser, as with `ddp_spawn`; the command line itself is not sent."""
    Path("some.yaml").write_text("trainer:\n  max_epochs: 1\n")
    module = BareLine if words else SteepLine
    cli = LightningCLI(module, PointsOfLine, args=["--config=some.yaml", *LOGGED, *words], run=False)
    callback = next(one for one in cli.trainer.callbacks if isinstance(one, SaveConfigCallback))
    sent = pickle.dumps(callback)
    again = pickle.loads(sent)
    assert b"LightningCLI" not in sent
    assert again.parser.dump(again.config, skip_none=False) == callback.parser.dump(callback.config, skip_none=False)
    assert again.parser.sources.has_read("some.yaml")
    arguments = {"model.width": 2} if words else {"model.width": 2, "model.lr": 0.5}
    assert again.parser.instantiate(again.parser.parse_args([f"--{k}={v}" for k, v in arguments.items()])).model


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork"])
def test_processes_of_its_own(strategy):
    cli = fitted(*LOGGED, f"--trainer.strategy={strategy}", "--trainer.devices=2")
    assert cli.trainer.global_step > 0
    saved = yaml.safe_load((RUN / "config.yaml").read_text())
    assert saved["trainer"]["strategy"] == strategy
    assert sorted(path.name for path in RUN.parent.iterdir()) == [RUN.name]
