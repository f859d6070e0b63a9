"""Objects of a real Lightning are refused with the command that runs their program."""

from __future__ import annotations

import pytest
import torch

import lightlib
from lightlib.errors import ArgumentTypeError
from tests.runs.quiet import QUIET


def theirs(name: str, module: str) -> object:
    """Return an object of a user's class that has a class of Lightning's as its base."""
    base = type(name, (), {"__module__": module})
    return type("Mine", (base,), {})()


class Net(lightlib.Module):
    def training_step(self, batch, batch_idx):
        return batch.sum()


CASES = {
    "a callback": lambda: lightlib.Trainer(callbacks=[theirs("EarlyStopping", "lightning.pytorch.callbacks")]),
    "a callback alone": lambda: lightlib.Trainer(callbacks=theirs("Timer", "lightning.pytorch.callbacks.timer")),
    "a logger": lambda: lightlib.Trainer(logger=theirs("CSVLogger", "lightning.pytorch.loggers.csv_logs")),
    "a profiler": lambda: lightlib.Trainer(profiler=theirs("SimpleProfiler", "lightning.pytorch.profilers.simple")),
    "a strategy": lambda: lightlib.Trainer(strategy=theirs("DDPStrategy", "lightning.pytorch.strategies.ddp")),
    "a plugin": lambda: lightlib.Trainer(plugins=[theirs("Precision", "lightning.pytorch.plugins.precision")]),
    "a module": lambda: lightlib.Trainer(**QUIET, max_epochs=1).fit(theirs("LightningModule", "lightning.pytorch")),
    "a data module": lambda: lightlib.Trainer(**QUIET, max_epochs=1).fit(
        Net(), datamodule=theirs("LightningDataModule", "lightning.pytorch.core")
    ),
    "a data module as loaders": lambda: lightlib.Trainer(**QUIET, max_epochs=1).fit(
        Net(), theirs("LightningDataModule", "lightning.pytorch.core")
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_names_the_command(case):
    with pytest.raises(ArgumentTypeError, match=r"`lightlib compat run …`.*instead of\s+`import lightning as L`"):
        CASES[case]()


def test_older_packages_are_named():
    with pytest.raises(ArgumentTypeError, match="instead of `import pytorch_lightning as L`"):
        lightlib.Trainer(callbacks=[theirs("Timer", "pytorch_lightning.callbacks")])


def test_other_objects_keep_their_fix():
    with pytest.raises(ArgumentTypeError) as raised:
        lightlib.Trainer(callbacks=[torch.nn.Identity()])
    assert "compat run" not in str(raised.value)
