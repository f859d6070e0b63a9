"""Callbacks and loggers with two processes: one set of files, and the same decisions on all ranks."""

from __future__ import annotations

import csv
import math
import os
import signal
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import (
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    OnExceptionCheckpoint,
    RichProgressBar,
    TerminateOnNaN,
    Timer,
    TQDMProgressBar,
)
from lightlib.callbacks.terminate_on_nan import NonFiniteLossError
from lightlib.errors import MisconfigurationException
from lightlib.launch.watch.failure import OtherRankError
from lightlib.loggers import CSVLogger, TensorBoardLogger
from tests.processes.ranks import ranks

pytestmark = pytest.mark.processes


class Line(L.Module):
    """A regression with batches that may be slow, or end in NaN, on one process."""

    def __init__(
        self, lr: float = 0.1, slow: dict[int, float] | None = None, bad: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.save_hyperparameters("lr")
        self.layer = torch.nn.Linear(2, 1)
        self.error = torchmetrics.MeanSquaredError()
        self.lr, self.slow, self.bad = lr, slow or {}, bad
        self.example_input_array = torch.ones(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self(x), y)
        if self.bad == (self.trainer.global_rank, self.global_step):
            loss = loss * math.nan
        time.sleep(self.slow.get(self.trainer.global_rank, 0.0))
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("place", float(self.trainer.global_rank))  # 0 and 1: their mean is 0.5 on both

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self(x), y), prog_bar=True)
        self.error(self(x), y)
        self.log("error", self.error, on_step=True, on_epoch=True, prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("test_loss", torch.nn.functional.mse_loss(self(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def loader(size: int, samples: int = 32) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 2, generator=generator)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True) + 0.1), 8 // size)


def trainer_of(root: str, size: int, *callbacks: Any, **options: Any) -> L.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "max_epochs": 3}
    if not any(isinstance(callback, (ModelCheckpoint, OnExceptionCheckpoint)) for callback in callbacks):
        quiet["enable_checkpointing"] = False
    return L.Trainer(
        accelerator="cpu", devices=size, default_root_dir=root, callbacks=list(callbacks), log_every_n_steps=2,
        **{"strategy": "ddp" if size > 1 else "auto"} | quiet | options,
    )  # fmt: skip


def built(**arguments: Any) -> Line:
    torch.manual_seed(0)
    return Line(**arguments)


def floats(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def files_in(root: str | Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in Path(root).rglob("*") if path.is_file())


def rows_of(root: str | Path) -> list[dict[str, str]]:
    (path,) = Path(root).rglob("metrics.csv")
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


# a full life cycle: fit, fit again, validate, test


def life(rank: int, root: str, size: int) -> dict[str, Any]:
    best = ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True, filename="{epoch}-{val_loss:.4f}")
    steps = ModelCheckpoint(Path(root) / "steps", every_n_train_steps=3, save_top_k=-1)
    by_step = ModelCheckpoint(Path(root) / "by_step", monitor="loss_step", every_n_train_steps=2, save_top_k=2)
    linked = ModelCheckpoint(Path(root) / "linked", save_last="link", every_n_epochs=1)
    rates, stopping = LearningRateMonitor(), EarlyStopping("place", patience=50)
    trainer = trainer_of(
        root, size, best, steps, by_step, linked, rates, stopping, ModelSummary(), TQDMProgressBar(),
        logger=[CSVLogger(root), TensorBoardLogger(root, name="board", log_graph=True)], enable_progress_bar=True,
        enable_model_summary=True, profiler="simple",
    )  # fmt: skip
    module, data = built(), loader(size)
    trainer.fit(module, data, data)
    trainer.max_epochs = 5
    trainer.fit(module, data, data)
    fitted = floats(trainer.callback_metrics)
    (tested,) = trainer.test(module, data, ckpt_path="best", verbose=False)
    (validated,) = trainer.validate(module, data, verbose=False)
    return {
        "fitted": fitted, "tested": tested, "validated": validated, "rates": rates.lrs, "log_dir": trainer.log_dir,
        "score": float(best.best_model_score), "best": best.best_model_path, "last": best.last_model_path,
        "kept": {path: float(value) for path, value in best.best_k_models.items()},
        "by_step": {path: float(value) for path, value in by_step.best_k_models.items()},
        "link": linked.last_model_path, "place": float(stopping.best_score), "weight": module.layer.weight.tolist(),
    }  # fmt: skip


def same(value: Any, other: Any, root: Any, other_root: Any) -> None:
    """Compare nested values; paths below their own root, numbers within the rounding of other sums."""
    if isinstance(value, dict):
        renamed = {str(key).replace(str(other_root), str(root)): one for key, one in other.items()}
        assert value.keys() == renamed.keys()
        for key in value:
            same(value[key], renamed[key], root, other_root)
    elif isinstance(value, str):
        assert value == other.replace(str(other_root), str(root))
    elif isinstance(value, list):
        for one, its in zip(value, other, strict=True):
            same(one, its, root, other_root)
    else:
        assert value == pytest.approx(other, rel=1e-5)


def test_a_whole_life_leaves_the_files_and_numbers_of_one_process(tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    first, second = ranks(2, life, str(two), 2)
    alone = life(0, str(one), 1)
    local = {"loss", "loss_step"}  # the last step's loss is each process's own
    for name in local:
        first["fitted"].pop(name), second["fitted"].pop(name), alone["fitted"].pop(name)
    assert first == second
    assert (first.pop("place"), alone.pop("place")) == (0.5, 0.0)
    assert (first["fitted"].pop("place"), alone["fitted"].pop("place")) == (0.5, 0.0)
    first.pop("by_step"), alone.pop("by_step")  # by the loss of rank zero's half of a batch
    same(first, alone, two, one)
    without = [name for name in files_in(two) if not name.startswith(("by_step", "board"))]
    assert without == [name for name in files_in(one) if not name.startswith(("by_step", "board"))]
    assert len(os.listdir(two / "by_step")) == 2
    boards = [name for name in files_in(two) if name.startswith("board")]
    assert len([name for name in boards if "events" in name]) == len(
        [name for name in files_in(one) if name.startswith("board") and "events" in name]
    )
    assert not [name for name in files_in(tmp_path) if name.endswith(".part")]
    for row, other in zip(rows_of(two), rows_of(one), strict=True):
        assert row.keys() == other.keys()
        for name in row.keys() - {"loss_step", "error_step", "place"}:
            assert row[name] == other[name] or float(row[name]) == pytest.approx(float(other[name]), rel=1e-5)


def resumed(rank: int, root: str, checkpoint: str) -> Any:
    callback = ModelCheckpoint(Path(root) / "checkpoints", monitor="val_loss", save_top_k=2, save_last=True)
    trainer = trainer_of(root, 2, callback, max_epochs=4)
    module = built()
    trainer.fit(module, loader(2), loader(2), ckpt_path=checkpoint)
    return trainer.current_epoch, {p: float(v) for p, v in callback.best_k_models.items()}, module.layer.weight.tolist()


def test_a_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    start = ranks(2, resumed_start, str(tmp_path))
    assert start[0] == start[1]
    assert len(os.listdir(tmp_path / "checkpoints")) == 3
    (epochs, kept, weights), other = ranks(2, resumed, str(tmp_path), "last")
    assert (epochs, kept, weights) == other
    assert epochs == 4
    assert sorted(os.path.basename(path) for path in kept) == sorted(
        name for name in os.listdir(tmp_path / "checkpoints") if not name.startswith("last")
    )
    again = ranks(2, uninterrupted, str(tmp_path / "whole"))
    assert weights == again[0]


def resumed_start(rank: int, root: str) -> Any:
    callback = ModelCheckpoint(Path(root) / "checkpoints", monitor="val_loss", save_top_k=2, save_last=True)
    trainer_of(root, 2, callback, max_epochs=2).fit(built(), loader(2), loader(2))
    return {p: float(v) for p, v in callback.best_k_models.items()}


def uninterrupted(rank: int, root: str) -> Any:
    module = built()
    trainer_of(root, 2, max_epochs=4).fit(module, loader(2), loader(2))
    return module.layer.weight.tolist()


# time


def timed(rank: int, root: str) -> Any:
    callback = ModelCheckpoint(root, train_time_interval=timedelta(seconds=0.6), save_top_k=-1)
    module = built(slow={0: 0.005, 1: 0.01})
    trainer = trainer_of(root, 2, callback, max_epochs=1, max_steps=200, limit_val_batches=0)
    trainer.fit(module, loader(2, samples=1600))
    return len([name for name in os.listdir(root) if name.startswith("epoch")]), callback.best_model_path


def test_a_time_interval_is_that_of_rank_zero(tmp_path: Path) -> None:
    first, second = ranks(2, timed, str(tmp_path))
    assert first == second
    saved, best = first
    assert 2 <= saved <= 100
    assert min(os.listdir(tmp_path)).startswith("epoch=0-step=")
    assert os.path.exists(best)


def validated_by_time(rank: int, root: str) -> Any:
    steps: list[int] = []
    noted = L.callbacks.LambdaCallback(on_validation_end=lambda trainer, module: steps.append(trainer.global_step))
    trainer = trainer_of(
        root, 2, noted, max_epochs=1, val_check_interval={"seconds": 1}, num_sanity_val_steps=0, limit_val_batches=1
    )
    trainer.fit(built(slow={1: 0.01}), loader(2, samples=1600), loader(2))
    return steps


def test_validation_by_time_happens_at_the_same_batches(tmp_path: Path) -> None:
    first, second = ranks(2, validated_by_time, str(tmp_path))
    assert first == second
    assert first


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_timer_stops_all_at_one_batch(tmp_path: Path, interval: str) -> None:
    first, second = ranks(2, stopped_by_timer, str(tmp_path), interval)
    assert first == second
    steps, whole_epochs = first
    assert 0 < steps < 4000
    assert whole_epochs or interval == "step"


def stopped_by_timer(rank: int, root: str, interval: str) -> Any:
    timer = Timer(timedelta(seconds=0.7), interval=interval)
    trainer = trainer_of(root, 2, timer, max_epochs=1000, limit_val_batches=0)
    module = built(slow={0: 0.002, 1: 0.005})
    trainer.fit(module, loader(2))
    again = trainer.global_step
    trainer.fit(module, loader(2))  # its time is up, so it trains no step
    assert trainer.global_step == again
    return trainer.global_step, trainer.global_step % 4 == 0


# stops


def stopped_early(rank: int, root: str, monitor: str) -> Any:
    stopping = EarlyStopping(monitor, patience=2, mode="max", check_on_train_epoch_end=True)
    trainer = trainer_of(root, 2, stopping, max_epochs=50)
    trainer.fit(built(), loader(2), loader(2))
    return trainer.current_epoch, stopping.state_dict(), stopping.stopping_reason_message


@pytest.mark.parametrize("monitor", ["val_loss", "loss_step", "place"])
def test_early_stopping_decides_alike(tmp_path: Path, monitor: str) -> None:
    first, second = ranks(2, stopped_early, str(tmp_path), monitor)
    assert first == second
    assert first[0] < 50
    if monitor == "place":
        assert first[:2] == (3, {"wait_count": 2, "stopped_epoch": 2, "best_score": torch.tensor(0.5), "patience": 2})


def bad_loss(rank: int, root: str) -> Any:
    saved = OnExceptionCheckpoint(root)
    trainer = trainer_of(root, 2, TerminateOnNaN(), saved, max_epochs=2, limit_val_batches=0)
    module = built(bad=(1, 5))
    try:
        trainer.fit(module, loader(2))
    except (NonFiniteLossError, OtherRankError) as error:
        return str(error), trainer.global_step, bool(module.layer.weight.isfinite().all())
    return None


def test_a_loss_that_is_not_finite_on_one_rank_ends_all_before_it_reaches_the_weights(tmp_path: Path) -> None:
    for text, step, finite in ranks(2, bad_loss, str(tmp_path)):
        assert "The loss of rank 1 is nan at epoch 1, batch 1, global step 5." in text
        assert (step, finite) == (5, True)
    assert files_in(tmp_path) == []


# the terminal


def shown(rank: int, root: str, bar: str) -> str:
    import contextlib
    import io

    out = io.StringIO()
    kind = {"rich": RichProgressBar, "tqdm": TQDMProgressBar}[bar]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        trainer = trainer_of(root, 2, kind(), enable_progress_bar=True, enable_model_summary=True, max_epochs=2)
        trainer.fit(built(), loader(2), loader(2))
        trainer.validate(built(), loader(2))
    return out.getvalue()


@pytest.mark.parametrize("bar", ["rich", "tqdm"])
def test_only_rank_zero_draws_and_speaks(tmp_path: Path, bar: str) -> None:
    first, second = ranks(2, shown, str(tmp_path), bar)
    assert "Epoch 2/2" in first
    assert "val_loss" in first
    assert second == ""


# failures


def refused(rank: int, root: str, what: str) -> str:
    if what == "folder":
        callbacks, options = [ModelCheckpoint("/proc/nowhere")], {}
    else:
        callbacks, options = [], {"logger": CSVLogger("/proc/nowhere")}
    try:
        trainer_of(root, 2, *callbacks, limit_val_batches=0, **options).fit(built(), loader(2))
    except Exception as error:  # noqa: BLE001  either its own or the other's
        return f"{type(error).__name__}: {error}"
    return "went through"


@pytest.mark.parametrize("what", ["folder", "logger"])
def test_a_folder_that_cannot_be_written_is_an_error_on_all(tmp_path: Path, what: str) -> None:
    for text in ranks(2, refused, str(tmp_path), what):
        assert "/proc/nowhere" in text


def signalled(rank: int, root: str, number: int) -> Any:
    class Signal(L.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_rank == 1 and trainer.global_step == 5:
                os.kill(os.getpid(), number)

    both = ModelCheckpoint(root, save_on_exception=True), OnExceptionCheckpoint(root)
    trainer = trainer_of(root, 2, Signal(), *both, max_epochs=1000, limit_val_batches=0)
    try:
        trainer.fit(built(slow={0: 0.01, 1: 0.01}), loader(2))
    except SystemExit as ended:
        return ended.code, trainer.global_step, trainer.interrupted
    return None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_after_a_signal_to_one_rank_all_save_together(tmp_path: Path, number: int, code: int) -> None:
    first, second = ranks(2, signalled, str(tmp_path), int(number))
    assert first == second
    assert (first[0], first[2]) == (code, True)
    step = first[1]
    saved = {name: torch.load(tmp_path / name, weights_only=True) for name in files_in(tmp_path)}
    assert {"interrupted.ckpt", "on_exception.ckpt"} <= set(saved)
    assert saved["interrupted.ckpt"]["global_step"] == saved["on_exception.ckpt"]["global_step"] == step


# sharded models


class Looks(L.Callback):
    """Does in its hooks everything that is allowed on one rank alone, or with a checkpoint."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.folder = ""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        if trainer.is_global_zero:
            self.folder = trainer.log_dir

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        self.names = sorted(checkpoint["state_dict"])


def spread(rank: int, root: str, strategy: str) -> Any:
    rates, looks = LearningRateMonitor(log_momentum=True), Looks()
    callback = ModelCheckpoint(Path(root) / "checkpoints", monitor="val_loss", save_top_k=2, save_last="link")
    board = TensorBoardLogger(root, log_graph=True)
    trainer = trainer_of(root, 2, rates, looks, callback, strategy=strategy, logger=board, profiler="simple")
    trainer.profiler.filename = "profile"
    module = built()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer.fit(module, loader(2), loader(2))
    (tested,) = trainer.test(module, loader(2), ckpt_path="best", verbose=False)
    try:
        module.to_torch_export(Path(root) / "model.pt2")
        refused = ""
    except MisconfigurationException as error:
        refused = str(error)
    said = [str(one.message) for one in warned if "graph" in str(one.message)]
    return rates.lrs, looks.folder, looks.names, tested, callback.best_model_path, said, refused


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_callbacks_with_a_module_that_is_spread(tmp_path: Path, strategy: str) -> None:
    first, second = ranks(2, spread, str(tmp_path), strategy)
    assert first[0] == second[0] == {"lr-SGD": [0.1, 0.05, 0.025]}
    assert first[1] == os.path.join(tmp_path, "lightning_logs", "version_0")
    assert first[2] == ["layer.bias", "layer.weight"]
    assert second[2] == ([] if strategy == "fsdp" else first[2])
    assert first[3:5] == second[3:5]
    whole = strategy != "fsdp"
    assert first[5] == [] if whole else "it is sharded over processes" in first[5][0]
    assert second[5] == []
    assert os.path.exists(tmp_path / "model.pt2") == whole
    for refused in (first[6], second[6]):
        assert refused == "" if whole else "Line.to_torch_export was called while" in refused
    assert os.path.realpath(tmp_path / "checkpoints" / "last.ckpt") in {
        str(path) for path in (tmp_path / "checkpoints").iterdir()
    }
    profiles = [name for name in files_in(tmp_path) if "profile" in name]
    assert [os.path.basename(name) for name in profiles] == [
        f"{stage}-profile-{rank}.txt" for stage in ("fit", "test") for rank in (0, 1)
    ]
