"""Files that Lightning 1.2 to 2.0 wrote: a run resumed from one equals a plain torch loop."""

from __future__ import annotations

import sys
import zipfile
from typing import Any

import pytest
import torch
from torch import nn

import lightlib
from lightlib import compat
from lightlib.checkpoint import formats, inspect
from lightlib.checkpoint.lightning_upgrades import upgraded
from lightlib.errors import CheckpointError
from lightlib_lightning.finder import ROOTS, Finder
from tests.compatibility import lightning_run
from tests.compatibility.lightning_old import STORED
from tests.compatibility.lightning_run import BATCHES, EPOCHS, Record, batch_of, network, train
from tests.runs.quiet import QUIET

WITH_POSITION, WITHOUT_POSITION = ("1.9.5", "2.0.9"), ("1.2.10", "1.5.10")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    with zipfile.ZipFile(STORED) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def as_lightning():
    """Switch compat on for one test."""
    compat.install()
    yield
    compat.uninstall()


def plain_loop(content: dict[str, Any], epoch: int, batch: int, window: int = 1) -> dict[str, torch.Tensor]:
    """Return the weights after the rest of the run, from a file's weights, optimizer and schedule, in plain torch."""
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    net.load_state_dict({name.removeprefix("net."): value for name, value in content["state_dict"].items()})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer.load_state_dict(content["optimizer_states"][0])
    schedule.load_state_dict(content["lr_schedulers"][0])
    for _ in range(epoch, EPOCHS):
        for index in range(batch, BATCHES):
            (net(batch_of(index)).pow(2).mean() / window).backward()
            if (index + 1) % window == 0:
                optimizer.step()
                optimizer.zero_grad()
        batch = 0
        schedule.step()
    return {f"net.{name}": value for name, value in net.state_dict().items()}


def assert_equal(module: Any, expected: dict[str, torch.Tensor]) -> None:
    assert module.state_dict().keys() == expected.keys()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-7)


def test_the_stored_files_are_small():
    assert STORED.stat().st_size < 40_000
    with zipfile.ZipFile(STORED) as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == {*WITH_POSITION, *WITHOUT_POSITION}


@pytest.mark.parametrize("version", WITH_POSITION)
@pytest.mark.parametrize(
    ("name", "window", "epoch", "batch", "steps"),
    [
        ("plain/0-epoch", 1, 1, 0, [4, 5, 6, 7]),
        ("plain/1-2-batch", 1, 1, 3, [7]),
        ("window/1-0-batch", 2, 1, 0, [2, 2, 3, 3]),  # the open window is run again
    ],
)
def test_a_run_goes_on_at_the_batch_where_it_was(files, tmp_path, version, name, window, epoch, batch, steps):
    file = files / version / f"{name}.ckpt"
    run = name.partition("/")[0]
    resumed = train(lightlib, run, ckpt_path=file, best=tmp_path if run == "plain" else None)
    assert resumed.batches == [(1, index) for index in range(batch, BATCHES)]
    assert resumed.steps == steps
    assert_equal(resumed.module, plain_loop(torch.load(file), epoch, batch, window))
    assert resumed.trainer.datamodule.asked == 2


@pytest.mark.parametrize("version", WITH_POSITION)
def test_steps_of_two_optimizers_are_counted_by_batch(files, version):
    resumed = train(lightlib, "manual", ckpt_path=files / version / "manual" / "0-1-batch.ckpt")
    assert resumed.batches == [(0, 2), (0, 3), *((1, index) for index in range(BATCHES))]
    whole = train(lightlib, "manual")
    assert_equal(resumed.module, whole.module.state_dict())
    assert inspect(str(files / version / "manual" / "0-1-batch.ckpt")).step == 2


def test_before_1_6_a_file_is_the_beginning_of_the_next_epoch(files, caplog, tmp_path):
    caplog.set_level("INFO", "lightlib")
    file = files / "1.5.10" / "plain" / "0-epoch.ckpt"
    resumed = train(lightlib, "plain", ckpt_path=file, best=tmp_path)
    assert resumed.batches == [(1, index) for index in range(BATCHES)]
    # In this hook 1.5 stored one step too many, and Lightning 2.6 resumes from there as well.
    assert resumed.steps == [5, 6, 7, 8]
    assert_equal(resumed.module, plain_loop(torch.load(file), 1, 0))
    assert "Lightning 1.5.10 stored no position within an epoch: training resumes at the beginning of epoch 1." in (
        caplog.text
    )


def test_before_1_6_steps_were_counted_by_batch(files):
    found = inspect(str(files / "1.5.10" / "manual" / "0-1-batch.ckpt"))
    assert (found.writer, found.epoch, found.epoch_batch, found.batch, found.step) == ("Lightning 1.5.10", 1, 0, 2, 2)


def test_a_running_epoch_of_1_5_counts_as_complete_as_it_did_there(files, tmp_path):
    resumed = train(lightlib, "plain", ckpt_path=files / "1.5.10" / "plain" / "1-2-batch.ckpt", best=tmp_path)
    assert (resumed.batches, resumed.trainer.current_epoch, resumed.trainer.global_step) == ([], 2, 7)


@pytest.mark.parametrize("version", ["1.5.10", *WITH_POSITION])
def test_callbacks_get_their_states(files, version, tmp_path):
    file = files / version / "plain" / "1-2-batch.ckpt"
    stored = torch.load(file)["callbacks"]
    resumed = train(lightlib, "plain", ckpt_path=file, best=tmp_path)
    kept = {key.partition("{")[0]: state for key, state in stored.items()}
    assert resumed.stopping.best_score <= kept["EarlyStopping"]["best_score"]
    assert resumed.best.state_key in upgraded(torch.load(file))["callbacks"]


class TestClassesAsNames:
    """Before 1.5 the state of a callback was stored under its class."""

    def test_the_file_needs_trust_and_names_both_classes(self, files):
        with pytest.raises(CheckpointError) as raised:
            train(lightlib, "plain", ckpt_path=files / "1.2.10" / "plain" / "0-epoch.ckpt")
        text = str(raised.value)
        assert "pytorch_lightning.callbacks.early_stopping.EarlyStopping" in text
        assert "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint" in text
        assert "weights_only=False to fit and load_from_checkpoint" in text

    def test_without_compat_the_error_names_it(self, files, monkeypatch):
        monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if not isinstance(one, Finder)])
        for name in [name for name in sys.modules if name.partition(".")[0] in ROOTS]:
            monkeypatch.delitem(sys.modules, name)
        with pytest.raises(CheckpointError) as raised:
            formats.load(files / "1.2.10" / "plain" / "0-epoch.ckpt", trust=True)
        assert "holds objects of classes that cannot be imported: No module named 'pytorch_lightning'" in str(
            raised.value
        )
        assert "lightlib compat run" in str(raised.value)

    def test_with_compat_the_run_goes_on(self, files, tmp_path, as_lightning):
        file = files / "1.2.10" / "plain" / "0-epoch.ckpt"
        resumed = Record(None, None, None)
        module = network(lightlib, resumed, manual=False)()
        stopping = lightlib.callbacks.EarlyStopping("v", patience=9, check_on_train_epoch_end=False)
        best = lightlib.callbacks.ModelCheckpoint(tmp_path, monitor="v")
        trainer = lightlib.Trainer(
            **{**QUIET, "max_epochs": EPOCHS, "enable_checkpointing": None}, callbacks=[stopping, best]
        )
        data = lightning_run.numbers(lightlib, stateful=False)()
        trainer.fit(module, datamodule=data, ckpt_path=file, weights_only=False)
        assert resumed.batches == [(1, index) for index in range(BATCHES)]
        assert resumed.steps == [4, 5, 6, 7]
        content = torch.load(file, weights_only=False)
        assert_equal(module, plain_loop(content, 1, 0))
        assert content["callbacks"][lightlib.callbacks.EarlyStopping]["best_score"] == pytest.approx(0.0948, abs=1e-4)
        assert stopping.best_score < 0.0948

    def test_its_weights_and_hyperparameters_load(self, files, as_lightning):
        kind = network(lightlib, Record(None, None, None), manual=False)
        module = kind.load_from_checkpoint(files / "1.2.10" / "plain" / "1-2-batch.ckpt", weights_only=False)
        assert dict(module.hparams) == {"width": 2, "lr": 0.05}


SCALER = {"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 7}


class TestUpgraded:
    """The table of names that have changed."""

    @pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
    @pytest.mark.filterwarnings("ignore:The checkpoint holds the state of a callback")
    @pytest.mark.parametrize(
        ("key", "version"),
        [
            ("native_amp_scaling_state", "1.5.10"),
            ("NativeMixedPrecisionPlugin", "1.8.6"),
            ("MixedPrecisionPlugin", "2.0.9"),
            ("MixedPrecision", "2.6.6"),
        ],
    )
    def test_the_loss_scaler(self, files, key, version):
        content = torch.load(files / "2.0.9" / "plain" / "0-epoch.ckpt")
        torch.save({**content, key: SCALER, "pytorch-lightning_version": version}, "run.ckpt")
        seen = []

        class Watch(lightlib.Callback):
            def on_train_start(self, trainer, pl_module):
                seen.append(trainer.scaler.state_dict())

        record = Record(None, None, None)
        trainer = lightlib.Trainer(**{**QUIET, "max_epochs": EPOCHS, "precision": "16-mixed"}, callbacks=[Watch()])
        trainer.fit(
            network(lightlib, record, manual=False)(),
            datamodule=lightning_run.numbers(lightlib, stateful=False)(),
            ckpt_path="run.ckpt",
        )
        assert seen == [SCALER]

    def test_ours_and_strange_files_are_left_as_they_are(self):
        for content in (
            {"pytorch-lightning_version": "1.5.10", "lightlib": {}, "native_amp_scaling_state": {}},
            {"pytorch-lightning_version": 7, "native_amp_scaling_state": {}},
            {"pytorch-lightning_version": "newest", "native_amp_scaling_state": {}},
            {"native_amp_scaling_state": {}},
        ):
            assert upgraded(content) is content

    def test_states_of_the_wrong_type_are_kept_for_the_check_that_follows(self):
        content = {"pytorch-lightning_version": "1.9.5", "callbacks": 3, "loops": {"fit_loop": 4}}
        assert upgraded(content) == content
