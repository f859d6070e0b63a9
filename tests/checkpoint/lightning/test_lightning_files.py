"""Files that Lightning wrote in every hook: they load, and runs resume exactly where they stopped.

Without Lightning, the stored files of version 2.6.6 are read. If it is installed, it writes new files and reads ours.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pytest
import torch

import lightlib
import lightlib.callbacks
from lightlib.checkpoint import consolidate, convert, inspect, verify
from lightlib.errors import CheckpointError
from tests.compatibility.lightning_run import (
    BATCHES,
    EPOCHS,
    KEPT,
    RUNS,
    STORED,
    Record,
    installed_lightning,
    make,
    network,
    train,
)

HAS_LIGHTNING = importlib.util.find_spec("lightning") is not None
needs_lightning = pytest.mark.skipif(not HAS_LIGHTNING, reason="lightning is not installed")
# Ignore Lightning's own warnings about how these tests use it.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore:.*isinstance.*LeafSpec:FutureWarning")


@pytest.fixture(scope="module", params=["stored", pytest.param("made", marks=needs_lightning)])
def files(request, tmp_path_factory):
    """The folder with Lightning's files, one folder per run."""
    folder = tmp_path_factory.mktemp("lightning")
    if request.param == "stored":
        with zipfile.ZipFile(STORED) as archive:
            archive.extractall(folder)
    else:
        make(installed_lightning(), folder, kept=False)
    return folder


@pytest.fixture(scope="module")
def whole():
    """Each run, trained by lightlib without a stop."""
    return {name: train(lightlib, name) for name in RUNS}


def weights_equal(one, other) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.allclose(ours[k], theirs[k], atol=1e-7) for k in ours)


def done(file: Path, window: int = 1) -> int:
    """Return the number of batches before the place where a run resumes."""
    epoch, *rest = file.stem.split("-")
    batches = BATCHES if rest[0] == "epoch" else int(rest[0]) + 1
    return int(epoch) * BATCHES + batches // window * window


def assert_went_on(resumed: Record, whole: Record, batches: int) -> None:
    assert resumed.batches == whole.batches[batches:]
    assert resumed.steps == whole.steps[batches:]
    assert resumed.trainer.global_step == whole.trainer.global_step
    assert resumed.trainer.current_epoch == EPOCHS
    assert weights_equal(resumed.module, whole.module)


def test_the_stored_files_are_small():
    assert STORED.stat().st_size < 30_000
    with zipfile.ZipFile(STORED) as archive:
        assert sorted(archive.namelist()) == sorted(f"{run}/{name}.ckpt" for run in KEPT for name in KEPT[run])


def test_runs_go_on_where_lightning_was(files, whole):
    for name, (arguments, _) in RUNS.items():
        window = arguments.get("accumulate_grad_batches", 1)
        for file in sorted((files / name).iterdir()):
            if name == "stateful" and done(file) % BATCHES == 0:
                continue  # Lightning gives a loader its state back within an epoch alone
            resumed = train(lightlib, name, ckpt_path=file)
            assert_went_on(resumed, whole[name], done(file, window))
            if resumed.batches and not file.stem.endswith(
                f"{BATCHES - 1}-batch"
            ):  # Lightning runs that validation no more
                assert resumed.stopping.best_score == pytest.approx(whole[name].stopping.best_score)


@pytest.mark.parametrize(
    ("file", "first"),
    [("1-1-batch", (1, 6)), ("1-2-batch", (1, 8)), ("1-1-validation", (1, 8)), ("0-0-batch", (0, 2))],
    ids=["written before the validation due there", "after it", "in it", "before all"],
)
def test_a_validation_that_was_due_runs_once(files, whole, file, first):
    resumed = train(lightlib, "plain", ckpt_path=files / "plain" / f"{file}.ckpt")
    assert resumed.validations[0] == first
    assert resumed.validations == whole["plain"].validations[whole["plain"].validations.index(first) :]


def test_schedules_and_optimizers_are_taken_over(files, whole):
    def state(record):
        return record.trainer.optimizers[0].state_dict(), record.trainer.lr_scheduler_configs[0].scheduler.last_epoch

    for file in ("1-2-batch", "0-3-batch", "0-epoch"):
        resumed, expected = (
            state(one) for one in (train(lightlib, "plain", ckpt_path=files / "plain" / f"{file}.ckpt"), whole["plain"])
        )
        assert resumed[1] == expected[1] == EPOCHS
        assert resumed[0]["param_groups"] == expected[0]["param_groups"]
        for index, held in expected[0]["state"].items():
            torch.testing.assert_close(resumed[0]["state"][index]["momentum_buffer"], held["momentum_buffer"])


def test_the_data_module_gets_its_state(files):
    resumed = train(lightlib, "plain", ckpt_path=files / "plain" / "1-2-batch.ckpt")
    assert resumed.trainer.datamodule.asked == 2  # once by Lightning, once by the resumed run


def test_weights_and_hyperparameters_load(files):
    kind = network(lightlib, Record(None, None, None), manual=False)
    file = files / "plain" / "1-2-batch.ckpt"
    module = kind.load_from_checkpoint(file)
    saved = torch.load(file)["state_dict"]
    assert dict(module.hparams) == {"width": 2, "lr": 0.05}
    assert all(module.state_dict()[name].equal(saved[name]) for name in saved)
    assert kind.load_from_checkpoint(file, lr=0.5).hparams.lr == 0.5


def test_converted_files_go_on_as_well(files, whole, tmp_path):
    convert(files / "plain" / "1-2-batch.ckpt", tmp_path / "directory")
    consolidate(tmp_path / "directory", tmp_path / "file.ckpt")
    for name in ("directory", "file.ckpt"):
        assert_went_on(train(lightlib, "plain", ckpt_path=tmp_path / name), whole["plain"], 7)


def test_what_is_in_it_is_shown(files):
    file = str(files / "plain" / "1-2-batch.ckpt")
    found = inspect(file)
    assert found.writer.startswith("Lightning 2.")
    assert (found.epoch, found.epoch_batch, found.batch, found.step) == (1, 3, 7, 7)
    assert found.resumable
    assert found.hyperparameters == {"width": 2, "lr": 0.05}
    assert found.datamodule_hyperparameters == {"size": 2}
    assert found.callbacks == ("EarlyStopping{'monitor': 'v', 'mode': 'min'}",)
    assert found.tensors["net.0.weight"].shape == (2, 3)
    assert "no lightlib checksum" in verify(file).note


def test_lightnings_files_damaged_are_refused(files, tmp_path):
    whole = (files / "plain" / "1-2-batch.ckpt").read_bytes()
    with zipfile.ZipFile(files / "plain" / "1-2-batch.ckpt") as archive:
        parts = [archive.read(name) for name in archive.namelist() if name.endswith(".pkl") or "/data/" in name]
    broken = tmp_path / "broken.ckpt"
    for data in [whole[:-1], whole[: len(whole) // 2], whole[:10], b"", *(flipped(whole, part) for part in parts)]:
        broken.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"broken\.ckpt"):
            verify(broken)


def flipped(whole: bytes, part: bytes) -> bytes:
    place = whole.index(part) + len(part) // 2
    return whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :]


@needs_lightning
@pytest.mark.parametrize("name", ["plain", "window", "stateful"])
def test_lightning_goes_on_from_ours(name, whole, tmp_path):
    train(lightlib, name, tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) >= BATCHES * EPOCHS
    for file in files:
        position = inspect(str(file))
        resumed = train(installed_lightning(), name, ckpt_path=file)
        assert resumed.steps == whole[name].steps[position.batch :]
        assert [epoch for epoch, _ in resumed.batches] == [epoch for epoch, _ in whole[name].batches[position.batch :]]
        assert resumed.trainer.global_step == whole[name].trainer.global_step
        # Lightning reads a plain loader from its start again in the middle of an epoch; and takes the schedules of an
        # epoch that has no batch left as stepped.
        if not position.epoch_batch and name != "stateful":
            assert weights_equal(resumed.module, whole[name].module)
