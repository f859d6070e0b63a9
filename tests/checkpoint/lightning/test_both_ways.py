"""A run that changes between Lightning and lightlib ends like an unbroken run of Lightning.

Where Lightning is not installed, the layout of our file is compared with the one that Lightning 2.6.6 wrote.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib
from tests.compatibility.lightning_run import STORED, installed_lightning, train
from tests.runs.quiet import QUIET

needs_lightning = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:lightning", "ignore:.*isinstance.*LeafSpec:FutureWarning", "ignore:.*is not a directory"
)
STOPS = (2, 4, 6)  # epochs after which a run ends
OURS_BESIDE = {"lightlib"}
OPTIONAL = ("stopping_reason", "stopping_reason_message")  # Lightning does without them, as in files of 2.5


def network(framework: Any) -> Any:
    class Net(framework.LightningModule):
        def __init__(self, width: int = 4) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))
            self.seen: list[tuple[int, int, float]] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.net(batch[0]).float().pow(2).mean()  # the packages count steps without effect differently
            self.seen.append((self.current_epoch, self.global_step, loss.item()))
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("v", self.net(batch[0]).pow(2).mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Net()


def leg(framework: Any, folder: Path, epochs: int, scaled: bool, precision: str, ckpt_path: str | None) -> Any:
    """Train to an epoch; return the trainer, with the file to resume from as `checkpoint_callback.last_model_path`."""
    data = TensorDataset(torch.randn(24, 3, generator=torch.Generator().manual_seed(5)))
    saving = framework.callbacks.ModelCheckpoint(str(folder), monitor="v", save_top_k=2, save_last=True)
    stopping = framework.callbacks.EarlyStopping("v", patience=3)
    arguments = {**QUIET, "enable_checkpointing": True, "max_epochs": epochs, "num_sanity_val_steps": 0}
    if scaled and framework is not lightlib:  # there "16-mixed" is bfloat16 on a CPU, but for a plugin of the user's
        arguments["plugins"] = [framework.plugins.MixedPrecision("16-mixed", "cpu")]
    else:
        arguments["precision"] = precision
    trainer = framework.Trainer(**arguments, devices=1, callbacks=[saving, stopping])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = network(framework)
    loaders = DataLoader(data, batch_size=4), DataLoader(TensorDataset(data.tensors[0][:8]), batch_size=4)
    trainer.fit(module, *loaders, ckpt_path=ckpt_path)
    return trainer


def outcome(trainer: Any) -> dict[str, Any]:
    saving, stopping = trainer.checkpoint_callback, trainer.early_stopping_callback
    scaler = torch.load(saving.last_model_path).get("MixedPrecision")
    return {
        "weights": trainer.lightning_module.state_dict(),
        "optimizer": trainer.optimizers[0].state_dict(),
        "position": (trainer.current_epoch, trainer.global_step),
        "best": saving.best_model_score,
        "files": Path(saving.best_model_path).name,
        "stopping": (stopping.wait_count, stopping.best_score),
        "scaler": scaler,
    }


@needs_lightning
@pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("first", ["lightning", "lightlib"])
def test_a_run_that_changes_the_package_twice_ends_the_same(tmp_path, precision, first):
    scaled = precision == "16-mixed"
    theirs = installed_lightning()
    whole = leg(theirs, tmp_path / "whole", STOPS[-1], scaled, precision, None)
    order = (theirs, lightlib, theirs) if first == "lightning" else (lightlib, theirs, lightlib)
    path, seen = None, []
    for framework, epochs in zip(order, STOPS, strict=True):
        trainer = leg(framework, tmp_path / "legs", epochs, scaled, precision, path)
        path, seen = trainer.checkpoint_callback.last_model_path, [*seen, *trainer.lightning_module.seen]
    assert seen == whole.lightning_module.seen
    found, expected = outcome(trainer), outcome(whole)
    assert found.pop("files") == expected.pop("files")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


def layout(value: Any) -> Any:
    """Return nested keys, with the types of plain values."""
    if isinstance(value, dict):
        return {key: layout(part) for key, part in value.items()}
    return [layout(part) for part in value] if isinstance(value, (list, tuple)) else type(value).__name__


@pytest.mark.parametrize("file", ["plain/0-epoch.ckpt", "plain/1-2-batch.ckpt", "window/0-1-batch.ckpt"])
def test_our_file_has_the_layout_of_lightnings(tmp_path, file):
    with zipfile.ZipFile(STORED) as archive:
        archive.extract(file, tmp_path / "theirs")
    theirs = torch.load(tmp_path / "theirs" / file)
    name, place = file.removesuffix(".ckpt").split("/")
    (tmp_path / "ours").mkdir()
    train(lightlib, name, tmp_path / "ours")
    ours = torch.load(tmp_path / "ours" / f"{place}.ckpt")
    assert set(ours) - set(theirs) == OURS_BESIDE
    found, expected = layout({key: ours[key] for key in theirs}), layout(theirs)
    for one in (found, expected):  # the states of one callback, and counters of torch's, differ by design
        one.pop("callbacks")
        one["loops"].pop("validate_loop"), one["loops"].pop("test_loop"), one["loops"].pop("predict_loop")
    own = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1)], lr=0.1), 1).state_dict()
    schedules = found.pop("lr_schedulers")  # an older torch keeps other values than the one that wrote their file
    assert schedules == [layout(own)] * len(expected.pop("lr_schedulers"))
    assert found == expected
    assert ours["callbacks"].keys() == theirs["callbacks"].keys()
    for key, state in theirs["callbacks"].items():
        needed = {name: part for name, part in layout(state).items() if name not in OPTIONAL}
        assert needed.items() <= layout(ours["callbacks"][key]).items()
