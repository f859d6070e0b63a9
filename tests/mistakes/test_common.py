"""Common mistakes: each is reported in three parts, before the first step if it can be known."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightlib.cli import LightningCLI
from tests.runs import quiet
from tests.runs.modules import Regression

DATA = TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
QUIET = quiet.QUIET | {"max_epochs": 1}


STEPS: list[int] = []  # the batches of the training steps; attributes would be restored with a checkpoint


class Net(Regression):
    """One layer; the training steps of a test are counted."""

    def __init__(self):
        super().__init__(2)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        STEPS.append(batch_idx)
        return loss


class Validated(Net):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))


def loader(**arguments):
    return DataLoader(DATA, batch_size=2, **arguments)


def trainer(**arguments):
    return L.Trainer(**QUIET | arguments)


def net(base=Net, **methods):
    return type("Mine", (base,), methods)()


def fit(module=None, *data, **arguments):
    trainer(**arguments).fit(Net() if module is None else module, *(data or (loader(),)))


def optimized(returned, base=Net):
    """Fit a module; `configure_optimizers` returns `returned(optimizer)`."""
    fit(net(base, configure_optimizers=lambda self: returned(SGD(self.parameters(), 0.1))))


@dataclass
class Mistake:
    """A program with a mistake, and parts of its report.

    Attributes:
        program: The program.
        what: A part of the first line.
        fix: A part of the fix.
        steps: The training steps before the report; those of mistakes that only a step shows are not 0.
        warns: Whether it is a warning, and the run is completed.
        logs: Whether it is a line of the log.
    """

    program: Callable[[], object]
    what: str
    fix: str
    steps: int = 0
    warns: bool = False
    logs: bool = False


def raises(error):
    def step(self, batch, batch_idx):
        raise error

    return step


def saved(path="a.ckpt", module=None, **arguments):
    run = trainer(**arguments)
    run.fit(module or Net(), loader())
    run.save_checkpoint(path)
    STEPS.clear()
    return path


class Old(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx):
        pass


class Forgot(Net):
    def __init__(self):
        self.layer = nn.Linear(2, 1)


def wide(self):
    Net.__init__(self)
    self.net = nn.Linear(2, 3)


def manual(step=None, **arguments):
    module = net(training_step=step or Net.training_step)
    module.automatic_optimization = False
    fit(module, **arguments)


def resumed(path, module=None, **arguments):
    trainer(**{"max_epochs": 2, **arguments}).fit(module or Net(), loader(), ckpt_path=path)


def written(text):
    Path("c.yaml").write_text(text)
    LightningCLI(Net, args=["fit", "--config", "c.yaml"])


def truncated():
    path = Path(saved())
    path.write_bytes(path.read_bytes()[:-100])
    resumed(str(path))


def plain_weights():
    torch.save(Net().state_dict(), "w.pt")
    trainer().fit(Net(), loader(), ckpt_path="w.pt")


def set_up_twice():
    fabric = L.Fabric(accelerator="cpu")
    fabric.setup(fabric.setup(nn.Linear(2, 1)))


MODULE = {
    "a class for an object": Mistake(lambda: fit(Net), "`model` is the class Net", "trainer.fit(Net())"),
    "a torch module": Mistake(lambda: fit(nn.Linear(2, 1)), "a torch.nn.Module (Linear)", "from_model"),
    "no module": Mistake(lambda: trainer().fit(None, loader()), "got no model", "trainer.fit(module)"),
    "no super().__init__()": Mistake(Forgot, "before the base class was initialised", "super().__init__()"),
    "no training_step": Mistake(
        lambda: fit(type("Mine", (L.Module,), {"configure_optimizers": Net.configure_optimizers})()),
        "Mine has no `training_step`",
        "define it in Mine",
    ),
    "no configure_optimizers": Mistake(
        lambda: fit(type("Mine", (L.Module,), {"training_step": Net.training_step})()),
        "Mine has no `configure_optimizers`",
        "define it in Mine",
    ),
    "a misspelt hook": Mistake(
        lambda: fit(net(on_trian_start=lambda self: None)),
        "Mine.on_trian_start is never called",
        "rename it to `on_train_start`",
        steps=4,
        warns=True,
    ),
    "a hook of 1.x": Mistake(
        lambda: fit(net(on_train_epoch_end=lambda self, outputs: None)),
        "Lightning 2.0 removed `outputs`",
        "def on_train_epoch_end(self):",
    ),
    "a removed hook": Mistake(
        lambda: fit(net(training_epoch_end=lambda self, outputs: None)),
        "was removed in Lightning 2.0",
        "rename it to `on_train_epoch_end`",
        steps=4,
        warns=True,
    ),
    "an argument of 1.x in a step": Mistake(
        lambda: fit(net(training_step=lambda self, batch, batch_idx, optimizer_idx: None)),
        "`optimizer_idx`",
        "automatic_optimization = False",
    ),
    "setup without the stage": Mistake(
        lambda: fit(net(setup=lambda self: None)), "too many positional arguments", "def setup(self, stage):"
    ),
}
LOSS = {
    "a forgotten return": Mistake(
        lambda: fit(net(training_step=lambda self, batch, i: None)), "training_step returned None for every batch",
        "write `return loss`", warns=True,
    ),
    "a forgotten step": Mistake(
        lambda: manual(lambda self, batch, i: self.manual_backward(self.loss(batch))),
        "training_step never called self.optimizers().step()", "after self.manual_backward(loss)", warns=True,
    ),
    "no tensor": Mistake(
        lambda: fit(net(training_step=lambda self, batch, i: self.loss(batch).item())), "training_step returned",
        "return loss",
    ),
    "detached": Mistake(
        lambda: fit(net(training_step=lambda self, batch, i: self.loss(batch).detach())), "without a gradient",
        ".detach()",
    ),
    "not a single number": Mistake(
        lambda: fit(net(training_step=lambda self, batch, i: self.net(batch[0]))), "a loss of shape (2, 1)",
        "loss.mean()",
    ),
    "a dict without it": Mistake(
        lambda: fit(net(training_step=lambda self, batch, i: {"los": self.loss(batch)})), "the keys ['los']",
        "{'loss': loss",
    ),
    "a logged string": Mistake(
        lambda: fit(net(training_step=lambda self, batch, i: self.log("x", "high"))), "'high'", "self.log("
    ),
    "manual_backward in automatic": Mistake(
        lambda: fit(net(training_step=lambda self, batch, i: self.manual_backward(self.loss(batch)))),
        "called manual_backward", "automatic_optimization = False",
    ),
}  # fmt: skip
ARGUMENTS = {
    "misspelt": Mistake(lambda: trainer(max_epoch=3), "Did you mean 'max_epochs'?", "Trainer(max_epochs=3)"),
    "removed": Mistake(lambda: trainer(gpus=2), "removed in Lightning 2.0", "devices=2"),
    "accelerator": Mistake(lambda: trainer(accelerator="gpus"), "Did you mean 'gpu'?", "accelerator='gpu'"),
    "no GPU": Mistake(lambda: trainer(accelerator="cuda"), "cuda", "cpu"),
    "devices": Mistake(lambda: trainer(devices=0), "devices", "devices="),
    "precision": Mistake(
        lambda: trainer(precision="bf16mixed"), "Did you mean 'bf16-mixed'?", "Trainer(precision='bf16-mixed')"
    ),
    "strategy": Mistake(lambda: trainer(strategy="dpp"), "Did you mean 'ddp'?", "Trainer(strategy='ddp')"),
    "epochs as a word": Mistake(lambda: trainer(max_epochs="ten"), "max_epochs is 'ten'", "Trainer(max_epochs="),
    "a limit": Mistake(lambda: trainer(limit_train_batches=1.5), "limit_train_batches", "limit_train_batches="),
    "of fit": Mistake(lambda: trainer().fit(Net(), loader(), batch_size=8), "`batch_size=8`", "from_datasets"),
    "epochs of fit": Mistake(lambda: trainer().fit(Net(), loader(), epochs=8), "`epochs=8`", "Trainer(max_epochs=8)"),
    "of predict": Mistake(lambda: trainer().predict(Net(), loader=1), "'dataloaders'", "dataloaders=1"),
    "two that contradict": Mistake(
        lambda: trainer(overfit_batches=1, limit_train_batches=3),
        "overfit_batches=1 replaces limit_train_batches=3",
        "leave out limit_train_batches",
        logs=True,
    ),
    "accumulation by hand": Mistake(lambda: manual(accumulate_grad_batches=2), "accumulate_grad_batches=2", "step"),
    "clipping by hand": Mistake(lambda: manual(gradient_clip_val=1.0), "gradient_clip_val", "self.clip_gradients"),
}
CALLBACKS = {
    "a signature of 1.x": Mistake(lambda: trainer(callbacks=Old()), "removed `dataloader_idx`", "batch_idx):"),
    "no callback": Mistake(lambda: trainer(callbacks=[print]), "callbacks holds", "subclass lightlib.Callback"),
    "one twice": Mistake(lambda: trainer(callbacks=[EarlyStopping("x")] * 2), "object twice", "leave one out"),
    "a monitor that is not logged": Mistake(
        lambda: fit(Validated(), loader(), loader(), callbacks=EarlyStopping("val_los"), num_sanity_val_steps=0),
        "EarlyStopping(monitor='val_los')", "self.log('val_los', …)", steps=4,
    ),
    "a monitor without data": Mistake(
        lambda: fit(Validated(), callbacks=EarlyStopping("val_loss")), "EarlyStopping(monitor='val_loss')",
        "pass val_dataloaders",
    ),
    "the best of nothing": Mistake(lambda: ModelCheckpoint(save_top_k=3), "save_top_k=3", "monitor="),
    "nowhere to log": Mistake(lambda: fit(callbacks=LearningRateMonitor()), "has nowhere to log to", "History()"),
}  # fmt: skip
LOADERS = {
    "a step for validation without data": Mistake(
        lambda: fit(Validated()), "nothing is validated", "pass val_dataloaders", steps=4, warns=True
    ),
    "data for validation without a step": Mistake(
        lambda: fit(Net(), loader(), loader()), "has no validation_step", "define Net.validation_step"
    ),
    "none": Mistake(lambda: trainer().fit(Net()), "has no data", "trainer.fit(module, train_dataloaders=loader)"),
    "empty": Mistake(
        lambda: fit(Net(), DataLoader(TensorDataset(torch.ones(0, 2)))), "training data are empty", "check the data set"
    ),
    "a module for a loader": Mistake(
        lambda: fit(Net(), nn.Linear(2, 1)), "train_dataloaders is", "the module comes first"
    ),
    "a Dataset for a loader": Mistake(
        lambda: fit(net(training_step=lambda self, batch, i: self.net(batch).mean()), DATA),
        "a TensorDataset, which lightlib serves in batches of 32: a batch is a list of 2", "`x, y = batch`",
    ),
    "a class": Mistake(lambda: fit(Net(), DataLoader), "the class DataLoader", "DataLoader("),
    "a collate_fn without return": Mistake(
        lambda: fit(Net(), loader(collate_fn=lambda samples: None)), "Batch 0 of the training data is None",
        "`collate_fn`",
    ),
    "half weights, float data": Mistake(
        lambda: fit(Net().half()), "The weights of Net are float16, and its data are float32", "precision='16-true'"
    ),
    "a generator for three epochs": Mistake(
        lambda: fit(Net(), iter([*loader()]), max_epochs=3), "gave no batch in epoch 1", "", steps=4
    ),
    "memory": Mistake(
        lambda: fit(net(training_step=raises(torch.OutOfMemoryError("CUDA out of memory.")))),
        "Mine ran out of memory in training", "BatchSizeFinder",
    ),
}  # fmt: skip
OPTIMIZERS = {
    "a name": Mistake(lambda: optimized(lambda o: "sgd"), "gave 'sgd' (str)", "torch.optim.Adam("),
    "a schedule alone": Mistake(lambda: optimized(lambda o: StepLR(o, 1)), "gave a StepLR", "[optimizer], [scheduler]"),
    "of other parameters": Mistake(
        lambda: optimized(lambda o: Adam(nn.Linear(1, 1).parameters())), "holds no parameter of Mine",
        "self.parameters()", steps=4, warns=True,
    ),
    "Plateau without a monitor": Mistake(
        lambda: optimized(lambda o: ([o], [ReduceLROnPlateau(o)])), "ReduceLROnPlateau", "'monitor'"
    ),
    "an interval": Mistake(
        lambda: optimized(
            lambda o: {"optimizer": o, "lr_scheduler": {"scheduler": StepLR(o, 1), "interval": "steps"}}
        ),
        "interval='steps'", "'step'",
    ),
    "a misspelt key": Mistake(
        lambda: optimized(
            lambda o: {"optimizer": o, "lr_scheduler": {"scheduler": StepLR(o, 1), "intervall": "step"}}
        ),
        "Did you mean 'interval'?", "'interval'",
    ),
    "a frequency": Mistake(
        lambda: optimized(lambda o: {"optimizer": o, "frequency": 2}), "'frequency': 2", "in turn", steps=4, warns=True
    ),
    "OneCycle that is too short": Mistake(
        lambda: optimized(
            lambda o: {
                "optimizer": o,
                "lr_scheduler": {"scheduler": OneCycleLR(o, 0.1, total_steps=2), "interval": "step"},
            }
        ),
        "OneCycleLR", "total_steps",
    ),
}  # fmt: skip
FILES = {
    "absent": Mistake(lambda: resumed("no.ckpt"), "no.ckpt", ""),
    "of another architecture": Mistake(lambda: resumed(saved(), net(__init__=wide)), "net.weight", ""),
    "plain weights": Mistake(plain_weights, "is not a checkpoint", "plain weights: module.load_state_dict"),
    "truncated": Mistake(truncated, "a.ckpt", ""),
    "best of nothing": Mistake(lambda: trainer().test(Net(), loader(), ckpt_path="best"), "best", ""),
    "a finished run": Mistake(
        lambda: resumed(saved(), max_epochs=1), "Nothing to train", "trainer.max_epochs = 2", logs=True
    ),
}
ELSEWHERE = {
    "a key of a callback": Mistake(
        lambda: written(
            "trainer:\n  callbacks:\n  - class_path: ModelCheckpoint\n    init_args:\n      monitors: val_loss\n"
        ),
        "no argument 'monitors' (c.yaml, line 5). Did you mean 'monitor'?", "monitor: val_loss",
    ),
    "a key": Mistake(lambda: written("trainr:\n  max_epochs: 1\n"), "'trainr.max_epochs' (c.yaml, line 2)", "trainer:"),
    "a word for a number": Mistake(lambda: written("trainer:\n  max_epochs: ten\n"), "(c.yaml, line 2)", "max_epochs"),
    "a tab": Mistake(lambda: written("trainer:\n\tmax_epochs: 1\n"), "c.yaml, line 2, column 1: a tab", "spaces"),
    "an optimizer": Mistake(lambda: written("optimizer: Adamw\n"), "Did you mean 'AdamW'?", "one of these names"),
    "Fabric: set up twice": Mistake(set_up_twice, "set up", ""),
}  # fmt: skip
GROUPS = {
    "module": MODULE, "loss": LOSS, "argument": ARGUMENTS, "callback": CALLBACKS, "data": LOADERS,
    "optimizer": OPTIMIZERS, "file": FILES, "elsewhere": ELSEWHERE,
}  # fmt: skip
ALL = {f"{group}: {name}": mistake for group, mistakes in GROUPS.items() for name, mistake in mistakes.items()}
NOTES = (
    "a Dataset for a loader",
    "without return",
    "float data",
    "memory",
)  # exceptions have notes from Python 3.11 on


@pytest.mark.parametrize("name", [name for name in ALL if sys.version_info >= (3, 11) or not name.endswith(NOTES)])
def test_it_is_reported_in_three_parts(name, caplog, capsys):
    mistake, texts = ALL[name], []
    STEPS.clear()
    caplog.set_level("INFO", logger="lightlib")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with nullcontext() if mistake.warns or mistake.logs else pytest.raises((Exception, SystemExit)) as caught:
            mistake.program()
    if caught is not None:
        texts += [str(caught.value), *getattr(caught.value, "__notes__", ())]
    texts += [str(warning.message) for warning in seen] if mistake.warns else []
    texts += caplog.messages if mistake.logs else [capsys.readouterr().err]
    (found,) = [text for text in texts if mistake.what in text]
    what, expected, fix = re.fullmatch(r"(.+?)\n\s+Expected: (.+?)\n\s+Fix: (.+)", found.strip(), re.DOTALL).groups()
    assert mistake.what in what
    assert expected.strip()
    assert mistake.fix in fix
    assert len(STEPS) == mistake.steps
