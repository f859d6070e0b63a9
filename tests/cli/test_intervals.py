"""When a scheduler of the configuration steps: a run in epochs and its twin in steps, from YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import mse_loss

from lightlib.callbacks.callback import Callback
from lightlib.cli import LightningCLI, instantiate_class
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
    """The number of steps and the batches of each validation, and the learning rate of each step."""

    def __init__(self):
        self.validations, self.read, self.rates = [], [], []

    def on_validation_start(self, trainer, pl_module):
        self.validations.append(trainer.global_step)
        self.read.append(trainer.num_val_batches)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])


def fitted(text, *words, module=BareLine, kind=LightningCLI, data=PointsOfLine):
    """Return the CLI after `fit`, and the callback that watched it."""
    Path("run.yaml").write_text(text)
    watch = Watch()
    options = {"trainer_defaults": {"callbacks": [watch]}}
    cli = kind(module, data, args=["fit", "--config=run.yaml", *WORDS, *words], **options)
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


class TwoLoaders(PointsOfLine):
    def val_dataloader(self):
        return {"clean": super().val_dataloader(), "noisy": super().val_dataloader()}


NAMES = EPOCHS.replace(
    "check_val_every_n_epoch: 2", "limit_val_batches: {clean: 1}\n  check_val_every_n_epoch: {noisy: 3}"
)


@pytest.mark.parametrize(
    ("text", "both"),
    [
        (NAMES, (12, 24)),
        (NAMES.replace("{noisy: 3}", "{noisy: [[3, 3], [8, 2]]}"), (12, 24, 32)),
        (NAMES.replace("{noisy: 3}", "null\n  val_check_interval: {clean: 4, noisy: 20}"), (20,)),
    ],
)
def test_intervals_and_limits_by_the_names_of_loaders(text, both):
    cli, watch = fitted(text, "--trainer.max_epochs=8", data=TwoLoaders)
    batches = len(PointsOfLine().val_dataloader())
    assert watch.validations == [*range(4, 33, 4)]
    assert watch.read == [[1, batches if step in both else 0] for step in watch.validations]
    assert set(cli.trainer.callback_metrics) >= {"val_loss/clean", "val_loss/noisy"}


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


ONE_CYCLE = """
optimizer:
  class_path: SGD
  init_args: {lr: 0.1}
lr_scheduler:
  class_path: OneCycleLR
  init_args: {max_lr: 0.5, epochs: NUM_EPOCHS, steps_per_epoch: UPDATE_STEPS_PER_EPOCH * 2 - UPDATE_STEPS_PER_EPOCH}
lr_scheduler_config: {interval: step}
"""


def test_placeholders_in_a_file():
    first, watch = fitted(ONE_CYCLE, "--trainer.max_epochs=3", "--trainer.accumulate_grad_batches=3")
    assert first.trainer.lr_scheduler_configs[0].scheduler.total_steps == 6  # of 4 batches in 2 windows
    saved = Path("config.yaml").read_text()
    assert "epochs: NUM_EPOCHS\n" in saved
    assert "steps_per_epoch: UPDATE_STEPS_PER_EPOCH * 2 - UPDATE_STEPS_PER_EPOCH\n" in saved
    Path("config.yaml").unlink()
    again, repeated = fitted(saved)
    assert same_weights(first.model, again.model)
    assert watch.rates == repeated.rates
    assert len(set(watch.rates)) == 6


def test_placeholders_within_a_list():
    text = EPOCHS.replace("[6, 8]", "[TOTAL_UPDATE_STEPS - 8, 36]") + "lr_scheduler_config: {interval: step}\n"
    _, watch = fitted(text)
    assert watch.rates == [0.1] * 32 + [0.05] * 4 + [0.025] * 4


def test_a_placeholder_for_a_scheduler_that_the_module_builds():
    class Linked(BareLine):
        def __init__(self, schedule: dict | None = None):
            super().__init__()
            self.schedule = schedule

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [instantiate_class(optimizer, self.schedule)]

    class CLI(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_lr_scheduler_args(nested_key="steps", link_to="model.schedule")

    text = "steps: {class_path: StepLR, init_args: {step_size: NUM_EPOCHS}}\n"
    with pytest.raises(MisconfigurationException, match=r"StepLR is built with the placeholder step_size: NUM_EPOCHS"):
        fitted(text, "--trainer.max_epochs=1", module=Linked, kind=CLI)
