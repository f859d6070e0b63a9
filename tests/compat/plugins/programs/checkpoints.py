"""Programs with a CheckpointIO of their own, and strategies that override saving and loading."""

from __future__ import annotations

import json
import os
from typing import ClassVar

import torch
from base import EVENTS, Net, Validated, loader, result, trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import AsyncCheckpointIO, CheckpointIO
from lightning.pytorch.strategies import SingleDeviceStrategy


class Kept(CheckpointIO):
    """Keeps checkpoints in memory."""

    files: ClassVar[dict] = {}

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        EVENTS.append(["save", os.path.basename(path), storage_options, sorted(k for k in checkpoint if k in KEYS)])
        self.files[os.path.basename(path)] = json.dumps([weights_of(checkpoint), checkpoint["global_step"]])
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        torch.save(checkpoint, str(path) + ".mine")

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        EVENTS.append(["load", os.path.basename(path), weights_only])
        return torch.load(str(path) + ".mine", weights_only=False)

    def remove_checkpoint(self, path):
        EVENTS.append(["remove", os.path.basename(path)])
        os.unlink(str(path) + ".mine")

    def teardown(self):
        EVENTS.append("teardown")


KEYS = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "epoch", "global_step")


def weights_of(checkpoint):
    return [round(value, 6) for tensor in checkpoint["state_dict"].values() for value in tensor.flatten().tolist()]


def checkpoint_io(devices):
    saver = ModelCheckpoint(dirpath="kept", filename="{epoch}", monitor="val", save_top_k=1, mode="min")
    options = {"plugins": [Kept()], "callbacks": [saver], "enable_checkpointing": True, "devices": devices}
    options |= {"strategy": "ddp" if devices > 1 else "auto"}
    first = trainer(**options)
    first.fit(Validated(), loader(), loader())
    first.save_checkpoint("by_hand.ckpt", storage_options={"speed": 3})
    best = os.path.basename(saver.best_model_path)
    module = Validated()
    run = trainer(**{**options, "max_epochs": 3, "callbacks": [], "enable_checkpointing": False})
    run.fit(module, loader(), loader(), ckpt_path="by_hand.ckpt")
    kind = type(run.strategy.checkpoint_io).__name__
    return result(run, module, best=best, files=Kept.files, kind=kind, steps=run.global_step)


def checkpoint_io_set(devices):
    module = Net()
    run = trainer(max_epochs=1)
    run.strategy.checkpoint_io = io = Kept()
    run.fit(module, loader())
    run.save_checkpoint("set.ckpt")
    return result(run, module, same=run.strategy.checkpoint_io is io)


def checkpoint_async(devices):
    module = Net()
    run = trainer(plugins=[AsyncCheckpointIO(Kept())], max_epochs=1)
    run.fit(module, loader())
    run.save_checkpoint("async.ckpt")
    run.strategy.checkpoint_io.teardown()
    again = Net()
    more = trainer(plugins=[AsyncCheckpointIO(Kept())], max_epochs=2)
    more.fit(again, loader(), ckpt_path="async.ckpt")
    return result(more, again, steps=more.global_step)


class Storing(SingleDeviceStrategy):
    def save_checkpoint(self, checkpoint, filepath, storage_options=None):
        EVENTS.append(["save", os.path.basename(filepath)])
        checkpoint["mine"] = 7
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def load_checkpoint(self, checkpoint_path, weights_only=None):
        content = super().load_checkpoint(checkpoint_path, weights_only=weights_only)
        EVENTS.append(["load", os.path.basename(checkpoint_path), content["mine"]])
        return content

    def remove_checkpoint(self, filepath):
        EVENTS.append(["remove", os.path.basename(filepath)])
        super().remove_checkpoint(filepath)

    def lightning_module_state_dict(self):
        EVENTS.append("lightning_module_state_dict")
        return super().lightning_module_state_dict()

    def optimizer_state(self, optimizer):
        EVENTS.append("optimizer_state")
        return super().optimizer_state(optimizer)

    def load_model_state_dict(self, checkpoint, strict=True):
        EVENTS.append(["load_model_state_dict", strict, sorted(checkpoint["state_dict"])])
        super().load_model_state_dict(checkpoint, strict=strict)

    def load_optimizer_state_dict(self, checkpoint):
        EVENTS.append(["load_optimizer_state_dict", len(checkpoint["optimizer_states"])])
        super().load_optimizer_state_dict(checkpoint)


def strategy_checkpoints(devices):
    saver = ModelCheckpoint(dirpath="stored", filename="{epoch}", monitor="val", save_top_k=1, mode="min")
    first = trainer(strategy=Storing(), callbacks=[saver], enable_checkpointing=True)
    first.fit(Validated(), loader(), loader())
    files = sorted(os.listdir("stored"))
    module = Validated()
    run = trainer(strategy=Storing(), max_epochs=3)
    run.fit(module, loader(), loader(), ckpt_path=saver.best_model_path)
    return result(run, module, files=files, steps=run.global_step)
