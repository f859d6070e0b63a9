"""When a scheduler of the configuration steps: a run in epochs and its twin in steps, from YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import mse_loss

from lightlib.callbacks.callback import Callback
from lightlib.cli import LightningCLI
from lightlib.errors import MisconfigurationException
from tests.cli.parts import QUIET, BareLine, PointsOfLine, points
from tests.runs.plain import same_weights

BATCHES = 4  # per epoch: 16 points in batches of 4
EPOCHS = """
trainer:
  max_epochs: 10
  check_val_every_n_epoch: 2
  enable_checkpointing: true
  callbacks:
    - class_path: ModelCheckpoint
      init_args: {dirpath: saved, filename: "{step}", every_n_epochs: 2, save_top_k: -1}
optimizer:
  class_path: SGD
  init_args: {lr: 0.1}
lr_scheduler:
  class_path: MultiStepLR
  init_args: {milestones: [6, 8], gamma: 0.5}
"""
STEPS = (
    EPOCHS.replace("max_epochs: 10", "max_epochs: -1\n  max_steps: 40")
    .replace("check_val_every_n_epoch: 2", "check_val_every_n_epoch: null\n  val_check_interval: 8")
    .replace("every_n_epochs: 2", "every_n_train_steps: 8")
    .replace("[6, 8]", "[24, 32]")
    + "lr_scheduler_config: {interval: step}\n"
)
CONVERTED = STEPS.replace("[24, 32]", "[6, 8]").replace("{interval: step}", "{convert_to_iter_based: true}")
WORDS = [word for word in QUIET if "epochs" not in word and "checkpointing" not in word]


class Watch(Callback):
    """The number of steps at each validation, and the learning rate of each step."""

    def __init__(self):
        self.validations, self.rates = [], []

    def on_validation_start(self, trainer, pl_module):
        self.validations.append(trainer.global_step)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])


def fitted(text, *words, module=BareLine, kind=LightningCLI):
    """Return the CLI after `fit`, and the callback that watched it."""
    Path("run.yaml").write_text(text)
    watch = Watch()
    options = {"trainer_defaults": {"callbacks": [watch]}}
    cli = kind(module, PointsOfLine, args=["fit", "--config=run.yaml", *WORDS, *words], **options)
    return cli, watch


@pytest.mark.parametrize("text", [EPOCHS, STEPS, CONVERTED], ids=["epochs", "steps", "converted"])
def test_epochs_and_their_twin_in_steps(text):
    cli, watch = fitted(text)
    assert watch.validations == [8, 16, 24, 32, 40]
    assert sorted(path.name for path in Path("saved").iterdir()) == sorted(
        f"step={i}.ckpt" for i in (8, 16, 24, 32, 40)
    )
    assert watch.rates == [0.1] * 24 + [0.05] * 8 + [0.025] * 8
    torch.manual_seed(7)
    module, (x, y) = BareLine(), points(16)
    for rate in (0.1,) * 6 + (0.05,) * 2 + (0.025,) * 2:
        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
        for some_x, some_y in zip(x.split(4), y.split(4), strict=True):
            optimizer.zero_grad()
            mse_loss(module(some_x), some_y).backward()
            optimizer.step()
    assert same_weights(cli.model, module)


def test_every_key_and_the_saved_configuration():
    text = EPOCHS + "lr_scheduler_config: {interval: step, frequency: 2, begin: 4, end: 12, name: rate}\n"
    first, watch = fitted(
        text, "--trainer.logger=csv", "--trainer.log_every_n_steps=1", "--lr_scheduler_config.begin=6"
    )
    (config,) = first.trainer.lr_scheduler_configs
    assert (config.interval, config.frequency, config.begin, config.end, config.name) == ("step", 2, 6, 12, "rate")
    again, repeated = fitted(Path(first.trainer.log_dir, "config.yaml").read_text())
    assert same_weights(first.model, again.model)
    assert watch.rates == repeated.rates


def test_a_plateau_scheduler_that_steps_with_the_optimizer():
    text = EPOCHS.replace("MultiStepLR", "ReduceLROnPlateau").replace(
        "{milestones: [6, 8], gamma: 0.5}", "{monitor: train_loss, patience: 0, threshold: 100, threshold_mode: abs}"
    )
    cli, watch = fitted(text + "lr_scheduler_config: {interval: step, frequency: 4}\n", "--trainer.max_epochs=3")
    (config,) = cli.trainer.lr_scheduler_configs
    assert (config.monitor, config.interval, config.reduce_on_plateau) == ("train_loss", "step", True)
    assert watch.rates == pytest.approx([0.1] * 8 + [0.01] * 4)  # the first value is the best so far


class TestMistakes:
    def test_next_to_the_class(self, capsys):
        with pytest.raises(SystemExit):
            fitted(EPOCHS + "  interval: step\n")
        text = capsys.readouterr().err
        assert "'interval' is written next to the class of a scheduler" in text
        assert "lr_scheduler_config:\n      interval: step" in text

    def test_an_unknown_interval(self, capsys):
        with pytest.raises(SystemExit):
            fitted(EPOCHS, "--lr_scheduler_config.interval=steps")
        assert "lr_scheduler_config.interval" in capsys.readouterr().err

    def test_without_a_scheduler(self):
        text = EPOCHS.partition("lr_scheduler:")[0] + "lr_scheduler_config: {interval: step}\n"
        with pytest.raises(
            MisconfigurationException, match=r"`lr_scheduler_config` \(interval\), but no `lr_scheduler`"
        ):
            fitted(text)

    def test_two_metrics(self):
        text = EPOCHS.replace("MultiStepLR", "ReduceLROnPlateau").replace(
            "{milestones: [6, 8], gamma: 0.5}", "{monitor: val_loss}"
        )
        with pytest.raises(MisconfigurationException, match=r"reads 'val_loss', .* monitor='train_loss'"):
            fitted(text + "lr_scheduler_config: {monitor: train_loss}\n")

    def test_a_program_that_combines_the_two_itself(self):
        class CLI(LightningCLI):
            @staticmethod
            def configure_optimizers(lightning_module, optimizer, lr_scheduler=None):
                assert isinstance(lightning_module, BareLine)
                return [optimizer], [lr_scheduler]

        with pytest.raises(MisconfigurationException, match=r"CLI\.configure_optimizers returns the scheduler's dict"):
            fitted(STEPS, kind=CLI)

    def test_a_frequency_that_is_no_interval(self):
        with pytest.raises(MisconfigurationException, match="frequency=0"):
            fitted(EPOCHS, "--lr_scheduler_config.frequency=0")
