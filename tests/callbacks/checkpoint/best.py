"""A fit of four epochs, of which the second is the best, and the weights of a plain loop."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from lightlib.callbacks.callback import Callback
from tests.runs import plain
from tests.runs.plain import QUIET, batches, loader, momentum, network

LOSSES = (5.0, 1.0, 3.0, 2.0)  # the second epoch is the best
RUN = {name: value for name, value in QUIET.items() if name != "enable_checkpointing"} | {"max_epochs": 4}


class Net(plain.Net):
    """Validates with the losses of a list."""

    def __init__(self, width=0):
        super().__init__(momentum)
        self.save_hyperparameters()
        self.register_buffer("seen", torch.zeros(()))
        self.loaded = 0

    def training_step(self, batch, batch_idx):
        self.seen += 1
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", LOSSES[self.current_epoch])

    def on_load_checkpoint(self, checkpoint):
        self.loaded += 1


def by_hand(epochs):
    """Return the weights of a plain loop."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for x, y in batches(6):
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
    return net.state_dict()


def fit(folder, *callbacks, module=None, **options):
    module = module or Net()
    ckpt = options.pop("ckpt_path", None)
    trainer = L.Trainer(**RUN | options, default_root_dir=folder, callbacks=[*callbacks])
    trainer.fit(module, loader(24), loader(1), ckpt_path=ckpt)
    return module, trainer


def saver(folder, **options):
    return ModelCheckpoint(folder, "{epoch}", **{"monitor": "val_loss", **options})


class Stop(Callback):
    """Ends the process in an epoch, as a signal does."""

    not_in_checkpoint = ("epoch",)

    def __init__(self, epoch):
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch:
            raise KeyboardInterrupt
