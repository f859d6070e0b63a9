"""Programs that register a strategy and an accelerator of their own, and one that changes layers."""

from __future__ import annotations

import json
import sys

import torch
from base import EVENTS, Net, Validated, loader, result, trainer
from lightning.fabric.utilities.registry import _register_classes
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.plugins.layer_sync import LayerSync
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy, StrategyRegistry


class FromScratch(Strategy):
    """All that Lightning's base leaves open."""

    def __init__(self, device="cpu"):
        super().__init__()
        self.device = torch.device(device)
        self.global_rank, self.local_rank, self.world_size = 0, 0, 1

    @property
    def root_device(self):
        return self.device

    @property
    def is_global_zero(self):
        return True

    def model_to_device(self):
        EVENTS.append("model_to_device")
        self.model.to(self.root_device)

    def reduce(self, tensor, group=None, reduce_op="mean"):
        return tensor

    def barrier(self, name=None):
        pass

    def broadcast(self, obj, src=0):
        return obj

    def all_gather(self, tensor, group=None, sync_grads=False):
        return tensor

    def backward(self, closure_loss, optimizer, *args, **kwargs):
        return super().backward(closure_loss / 2, optimizer, *args, **kwargs)


def from_scratch(devices):
    StrategyRegistry.register("scratch", FromScratch, description="An example", device="cpu")
    module = Validated()
    run = trainer(strategy="scratch")
    run.fit(module, loader(), loader())
    kinds = [isinstance(run.strategy, kind) for kind in (FromScratch, Strategy, SingleDeviceStrategy)]
    return result(run, module, kinds=kinds)


class Pretend(Accelerator):
    """Hardware of the user's own, which computes on the CPU."""

    def __init__(self, note="default"):
        self.note = note

    def setup_device(self, device):
        EVENTS.append(["setup_device", str(device), self.note])

    def setup(self, trainer):
        EVENTS.append("setup")

    def get_device_stats(self, device):
        return {}

    def teardown(self):
        EVENTS.append("teardown")

    @staticmethod
    def parse_devices(devices):
        EVENTS.append(["parse_devices", devices])
        return devices

    @staticmethod
    def get_parallel_devices(devices):
        return [torch.device("cpu")] * devices

    @staticmethod
    def auto_device_count():
        return 1

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return "pretend"

    @classmethod
    def register_accelerators(cls, accelerator_registry):
        accelerator_registry.register("pretend", cls, description="An example", note="registered")


def accelerator(devices):
    _register_classes(AcceleratorRegistry, "register_accelerators", sys.modules[__name__], Accelerator)
    module = Net()
    run = trainer(accelerator="pretend", strategy=SingleDeviceStrategy("cpu"))
    run.fit(module, loader())
    found = result(run, module, kind=type(run.accelerator).__name__, known="pretend" in AcceleratorRegistry)
    return {**found, "events": sorted({json.dumps(event) for event in EVENTS})}


class Doubled(LayerSync):
    def apply(self, model):
        EVENTS.append(["apply", type(model).__name__])
        model.layer = torch.nn.Sequential(model.layer, torch.nn.Identity())
        return model

    def revert(self, model):
        EVENTS.append(["revert", type(model).__name__])
        model.layer = model.layer[0]
        return model


def layer_sync(devices):
    module = Validated()
    run = trainer(strategy="ddp", devices=devices, plugins=[Doubled()])
    run.fit(module, loader(), loader())
    run.validate(module, loader(), verbose=False)
    return result(run, module, layer=type(module.layer).__name__)
