"""LightningCLI under compat: short names on the command line, resolved as Lightning 2.6.6 does."""

from __future__ import annotations

import pytest

from lightlib import compat

CPU = ["--trainer.plugins.device=cpu"]


@pytest.fixture(autouse=True)
def _as_lightning():
    compat.install()
    yield
    compat.uninstall()


def made(*words):
    from lightning.pytorch.cli import LightningCLI
    from lightning.pytorch.demos.boring_classes import BoringModel

    fixed = ["--seed_everything=1", "--trainer.accelerator=cpu", "--trainer.devices=1"]
    return LightningCLI(BoringModel, run=False, args=[*fixed, *words]).trainer


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["--trainer.plugins", "HalfPrecision"], "HalfPrecision"),
        (["--trainer.plugins=HalfPrecision", "--trainer.plugins.precision=bf16-true"], "HalfPrecision"),
        (["--trainer.plugins+=DoublePrecision"], "DoublePrecision"),
        (["--trainer.plugins+=MixedPrecision", "--trainer.plugins.precision=bf16-mixed", *CPU], "MixedPrecision"),
        (["--trainer.plugins", '["HalfPrecision", "SLURMEnvironment"]'], "HalfPrecision"),
        (["--trainer.plugins", '{"class_path": "DoublePrecision"}'], "DoublePrecision"),
        (["--trainer.plugins=lightning.pytorch.plugins.HalfPrecision"], "HalfPrecision"),
    ],
)  # fmt: skip
def test_a_precision(words, kind):
    from lightning.pytorch import plugins

    found = made(*words).precision_plugin
    assert type(found).__name__ == kind
    assert isinstance(found, getattr(plugins, kind))


@pytest.mark.parametrize(
    ("words", "requeues"),
    [
        (["--trainer.plugins", "SLURMEnvironment"], True),
        (["--trainer.plugins=SLURMEnvironment", "--trainer.plugins.auto_requeue=false"], False),
        (["--trainer.plugins+=SLURMEnvironment", "--trainer.plugins.auto_requeue=false"], False),
        (["--trainer.plugins", '[{"class_path": "SLURMEnvironment", "init_args": {"auto_requeue": false}}]'], False),
    ],
)
def test_an_environment(words, requeues):
    from lightning.pytorch.cli import LightningCLI
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.plugins.environments import SLURMEnvironment

    cli = LightningCLI(BoringModel, run=False, args=["--seed_everything=1", *words])
    found = cli.config_init.trainer.plugins
    found = found[0] if isinstance(found, list) else found
    assert isinstance(found, SLURMEnvironment)
    assert found.auto_requeue is requeues


def test_a_checkpoint_io():
    from lightning.pytorch.plugins import AsyncCheckpointIO

    assert isinstance(made("--trainer.plugins", "AsyncCheckpointIO").strategy.checkpoint_io, AsyncCheckpointIO)


@pytest.mark.parametrize("sign", ["=", "+="])
def test_callbacks_and_loggers(sign, tmp_path):
    from lightning.pytorch.callbacks import EarlyStopping
    from lightning.pytorch.loggers import CSVLogger

    stop = [f"--trainer.callbacks{sign}EarlyStopping", "--trainer.callbacks.monitor=loss"]
    log = [f"--trainer.logger{sign}CSVLogger", f"--trainer.logger.save_dir={tmp_path}"]
    trainer = made(*stop, *log)
    assert [one.monitor for one in trainer.callbacks if isinstance(one, EarlyStopping)] == ["loss"]
    assert isinstance(trainer.logger, CSVLogger)


def test_a_strategy():
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

    assert isinstance(made("--trainer.strategy=ddp").strategy, DDPStrategy)
    assert isinstance(
        made("--trainer.strategy=SingleDeviceStrategy", "--trainer.strategy.device=cpu").strategy, SingleDeviceStrategy
    )
    given = ["--trainer.strategy=DDPStrategy", "--trainer.strategy.find_unused_parameters=true"]
    assert isinstance(made(*given).strategy, DDPStrategy)
