"""A small project for tests of the command, and helpers that run command lines in it."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonargparse
import pytest

from lightlib.command.main import main

__all__ = ["CONFIG", "status_of", "written_project"]

MODEL = '''
"""A model so small that a run takes no time. It prints the settings it was built from."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightlib as L
import torch
from torch import nn


class Base(L.Module):
    def __init__(
        self, width: int = 4, head: nn.Module | None = None, call: Callable | None = None, anything: Any = None,
        name: str = "x",
    ) -> None:
        super().__init__()
        self.width, self.head = width, head or nn.Identity()
        self.net = nn.Linear(2, width)

    def on_train_start(self) -> None:
        kinds = [type(callback).__name__ for callback in self.trainer.callbacks]
        optimizer = self.trainer.optimizers[0]
        schedulers = [type(config.scheduler).__name__ for config in self.trainer.lr_scheduler_configs]
        print(f"width {self.width}, head {type(self.head).__name__}, seed {torch.initial_seed()}")
        print(f"{type(optimizer).__name__} lr={optimizer.param_groups[0]['lr']} {schedulers} {kinds}")
        print(f"{type(self.trainer.strategy).__name__}, epochs {self.trainer.max_epochs}")

    def training_step(self, batch):
        return self.head(self.net(batch)).square().mean()

    def validation_step(self, batch):
        self.log("val_loss", self.training_step(batch))

    def test_step(self, batch):
        self.log("test_loss", self.training_step(batch))

    def predict_step(self, batch):
        print(f"predicts {len(batch)}")
        return self.net(batch)


class Model(Base):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.5)


class Silent(Model):
    def predict_step(self, batch):
        pass


class Classes(Model):
    def __init__(self, classes: int) -> None:
        super().__init__(classes)


class NoModule:
    pass


def make(width: int = 3):
    return Model(width)
'''
DATA = """
import lightlib as L
import torch
from torch.utils.data import DataLoader


class Data(L.DataModule):
    def __init__(self, batch_size: int = 4, count: int = 8) -> None:
        super().__init__()
        self.batch_size, self.count = batch_size, count

    def loader(self):
        return DataLoader(torch.ones(self.count, 2), self.batch_size)

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = loader
"""
CONFIG = """
seed_everything: 1
trainer:
  max_epochs: 1
  accelerator: cpu
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
  enable_checkpointing: false
model:
  class_path: model.Model
  init_args:
    width: 3
data:
  class_path: data.Data
"""
NINE = ["a: &a0 [x,x,x,x,x,x,x,x,x]", *(f"b{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10))]
FILES: dict[str, str | bytes] = {
    "model.py": MODEL,
    "data.py": DATA,
    "syntax_bad.py": "def f(:\n",
    "raises.py": "raise RuntimeError('no licence')\n",
    "needs.py": "import not_there_at_all\n",
    "config.yaml": CONFIG,
    "fast.yaml": "trainer:\n  fast_dev_run: true\n",
    "other.yaml": "trainer:\n  max_epochs: 2\nmodel:\n  init_args:\n    width: 5\n",
    "epochs.yaml": "trainer:\n  max_epochs: 2\n",
    "trainer.yaml": "max_epochs: 4\nlimit_train_batches: 1\n",
    "top.yaml": "trainr:\n  max_epochs: 1\n",
    "yes.yaml": "model:\n  init_args:\n    # a comment\n\n    width: 2\n    name: yes\n",
    "time.yaml": "seed_everything: &t 1:30:00\nmodel:\n  init_args:\n    name: *t\n",
    "one.yaml": "trainer:\n  1: 2\n",
    "on.yaml": "on: 2\n",
    "dpp.yaml": "trainer:\n  strategy: dpp\n",
    "section.yaml": "fit:\n  trainer:\n    max_epochs: 1\n",
    "nested.yaml": "trainer:\n  max_epochs: 1\n  max_epoch: 3\n",
    "arguments.yaml": "model:\n  class_path: model.Model\n  init_args:\n    widht: 3\n",
    "wrong.yaml": "trainer:\n  max_epochs: ten\n",
    "broken.yaml": "trainer:\n  max_epochs: [1\nmodel: x\n",
    "deeper.yaml": "trainer:\n  max_epochs: 1\n    devices: 1\n",
    "deep.yaml": f"model: {'[' * 5000}{']' * 5000}\n",
    "tab.yaml": "trainer:\n  max_epochs: 1\n\tdevices: 1\n",
    "twice.yaml": "trainer:\n  max_epochs: 1\n  max_epochs: 2\n",
    "bomb.yaml": "\n".join(NINE),
    "list.yaml": "- 1\n- 2\n",
    "empty.yaml": "",
    "latin.yaml": b"model: caf\xe9\n",
    "apply.yaml": 'model: !!python/object/apply:os.system ["touch canary"]\n',
    "new.yaml": 'model: !!python/object/new:subprocess.Popen [["touch", "canary"]]\n',
    "name.yaml": "model: !!python/name:os.system\n",
    "callback.yaml": "trainer:\n  callbacks:\n  - class_path: lightlib.callbacks.EarlyStoping\n",
    "keyed.yaml": "trainer:\n  callbacks: [EarlyStopping: {monitor: loss}]\n",
    "callback_key.yaml": "trainer:\n  callbacks:\n  - class_path: EarlyStopping\n    init_args: {patiense: 2}\n",
    "interpolated.yaml": "model:\n  init_args:\n    width: ${trainer.max_epochs}\n",
    "interpolated_wrong.yaml": "model:\n  init_args:\n    width: ${trainer.max_epoch}\n",
    "lightning.yaml": "optimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.01}}\n"
    "lr_scheduler: {class_path: torch.optim.lr_scheduler.StepLR, init_args: {step_size: 1}}\n"
    "trainer:\n  strategy: {class_path: lightning.pytorch.strategies.SingleDeviceStrategy, init_args: {device: cpu}}\n"
    "  callbacks:\n  - class_path: lightning.pytorch.callbacks.EarlyStopping\n    init_args: {monitor: val_loss}\n",
    "folder.yaml/a.yaml": "",
}
SET_BY_ALLOW = ("import_path_verdicts", "import_paths_enforced", "instantiate_subclass_spec_in_any")


@pytest.fixture(name="project")
def written_project(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Path]:
    """Write a project, change into it, and leave no trace of it in this process."""
    folder = Path("project").resolve()
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["lightlib"])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(logging.getLogger("lightlib"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("lightlib"), "handlers", [])  # pytest's own would repeat each message
    caplog.set_level(logging.INFO, "lightlib")
    settings = jsonargparse._common.parsing_settings
    before = {name: settings[name] for name in SET_BY_ALLOW}
    yield folder
    settings.update(before)
    for name in ("data", "model", "needs", "raises", "syntax_bad"):
        sys.modules.pop(name, None)


def status_of(words: str | list[str]) -> int:
    try:
        return main(shlex.split(words) if isinstance(words, str) else words)
    except SystemExit as end:
        return end.code or 0
