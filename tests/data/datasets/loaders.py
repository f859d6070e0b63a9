"""Loaders over mixtures and packed documents, and the batches of a run and of a plain loop."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from lightlib.callbacks import Callback
from lightlib.data import MixtureDataset, pack
from tests.runs.modules import Seen
from tests.runs.plain import quiet_trainer


class Stream(IterableDataset):
    """Items in another order in each epoch, shared out over workers."""

    def __init__(self, items):
        self.items, self.epoch = items, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def order(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return torch.randperm(len(self.items), generator=torch.Generator().manual_seed(self.epoch)).tolist()[
            first::step
        ]

    def __iter__(self):
        return (self.items[i] for i in self.order())


class Positioned(Stream):
    """The same with a position. As in Hugging Face's streams, each pass of the epoch of a loaded state begins there."""

    def __init__(self, items):
        super().__init__(items)
        self.at, self.read, self.loaded = 0, [], {}

    def __iter__(self):
        self.at, order = self.loaded.get("at", 0) if self.loaded.get("epoch") == self.epoch else 0, self.order()
        while self.at < len(order):
            self.at += 1
            self.read.append(self.at)
            yield self.items[order[self.at - 1]]

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.loaded = state


def documents(first, n=12):
    """Documents of 1 to 7 tokens, all different."""
    tokens = iter(range(first, first + 1000))
    return [[next(tokens) for _ in range(1 + 3 * i % 7)] for i in range(n)]


def mixed(kind, **options):
    return MixtureDataset(
        {"a": kind(list(range(20))), "b": kind(list(range(100, 112)))}, {"a": 0.6, "b": 0.4}, **options
    )


def packed(kind, length, **options):
    of_documents = {kind(documents(0)): 2, kind(documents(1000)): 1}
    return pack(MixtureDataset(of_documents, stopping="all_exhausted"), length, **options)


class Listed(list):
    __hash__ = object.__hash__


MAKE = {
    "map, shuffled": lambda **more: DataLoader(mixed(Listed), shuffle=True, **more),
    "map, in order": lambda **more: DataLoader(mixed(Listed, seed=3, num_samples=24), **more),
    "stream": lambda **more: DataLoader(mixed(Stream, stopping="all_exhausted"), **more),
    "stateful": lambda **more: StatefulDataLoader(mixed(Positioned, num_samples=24), **more),
    "map of rows": lambda **more: DataLoader(pack(documents(0, 40), 6), shuffle=True, **more),
    "stream of rows": lambda **more: DataLoader(packed(Stream, 7, mode="best_fit", window=4), **more),
    "stateful rows": lambda **more: StatefulDataLoader(packed(Positioned, 6, window=3), **more),
    "stateful, best fit": lambda **more: StatefulDataLoader(packed(Positioned, 7, mode="best_fit", window=4), **more),
}
IS_MAP = {name for name in MAKE if name.startswith("map")}


class SavesAt(Callback):
    def __init__(self, folder, name="", steps=()):
        self.folder, self.name, self.steps = folder, name, steps

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if not self.steps or trainer.global_step in self.steps:
            trainer.save_checkpoint(f"{self.folder}/{self.name}{trainer.global_step}.ckpt")


def fit(loader, ckpt_path=None, seed=7, **arguments):
    """Train two epochs; return the batches."""
    module = Seen()
    torch.manual_seed(seed)
    quiet_trainer(**{"max_epochs": 2, "limit_val_batches": 0, **arguments}).fit(module, loader, ckpt_path=ckpt_path)
    return module.seen


def plain(loader, seed=7):
    """The batches of two epochs in a plain loop, by epoch."""
    torch.manual_seed(seed)
    epochs = []
    for epoch in range(2):
        if hasattr(loader.dataset, "set_epoch"):
            loader.dataset.set_epoch(epoch)
        epochs.append([torch.utils._pytree.tree_map(lambda x: x.tolist(), batch) for batch in loader])
    return epochs


def fit_all(rank, folder, resumed=False):
    """Train with each loader as one of two ranks; save, or resume, within the second epoch."""
    found = {}
    for name, make in MAKE.items():
        loader = make(batch_size=2, drop_last=True)
        saves = [] if resumed else [SavesAt(folder, name, (STEP,))]
        path = f"{folder}/{name}{STEP}.ckpt" if resumed else None
        batches = fit(loader, path, 99 if resumed else 7, callbacks=saves, strategy="ddp", devices=2)
        data = loader.dataset
        found[name] = batches, data.source_epochs() if isinstance(data, MixtureDataset) else None
    return found


STEP = 7  # of two ranks, all loaders are then in the second epoch
