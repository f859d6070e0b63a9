"""Loops with strategies of Fabric's kind, run by Lightning and by lightlib.

``python main.py CASE [DEVICES]`` prints one line of JSON on the first process.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import contextmanager

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning.fabric.strategies.strategy import _BackwardSyncControl
from samples import samples  # noqa: F401  a case, found by its name
from torch.utils.data import DataLoader

EVENTS: list = []


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[0.5, -0.25]]))
            self.layer.bias.fill_(0.125)

    def forward(self, batch):
        return (self.layer(batch).sum() - 1.0) ** 2

    def twice(self, batch):
        return 2 * self(batch)


def kind(obj):
    return type(obj).__name__.removeprefix("Fabric")


def numbers(module):
    return [round(value, 6) for parameter in module.parameters() for value in parameter.detach().flatten().tolist()]


class Traced:
    """Notes the calls of a Fabric, with their arguments."""

    def setup_environment(self):
        EVENTS.append("setup_environment")
        super().setup_environment()

    def setup_module_and_optimizers(self, module, optimizers, scheduler=None):
        EVENTS.append(["setup_module_and_optimizers", kind(module), [kind(one) for one in optimizers], kind(scheduler)])
        return super().setup_module_and_optimizers(module, optimizers, scheduler)

    def setup_module(self, module):
        EVENTS.append(["setup_module", kind(module)])
        made = super().setup_module(module)
        EVENTS.append(["setup_module returns", kind(made)])
        return made

    def setup_optimizer(self, optimizer):
        EVENTS.append(["setup_optimizer", kind(optimizer)])
        return super().setup_optimizer(optimizer)

    def module_to_device(self, module):
        EVENTS.append(["module_to_device", kind(module)])
        super().module_to_device(module)

    def process_dataloader(self, dataloader):
        EVENTS.append(["process_dataloader", kind(dataloader)])
        return super().process_dataloader(dataloader)

    def backward(self, tensor, module, *args, **kwargs):
        EVENTS.append(["backward", round(tensor.item(), 5), kind(module), sorted(kwargs)])
        super().backward(tensor, module, *args, **kwargs)

    def optimizer_step(self, optimizer, **kwargs):
        EVENTS.append(["optimizer_step", kind(optimizer), sorted(kwargs)])
        return super().optimizer_step(optimizer, **kwargs)

    def clip_gradients_norm(self, module, optimizer, max_norm, norm_type=2.0, error_if_nonfinite=True):
        norm = super().clip_gradients_norm(module, optimizer, max_norm, norm_type, error_if_nonfinite)
        EVENTS.append(["clip_gradients_norm", kind(module), kind(optimizer), max_norm, norm_type, error_if_nonfinite])
        EVENTS.append(round(norm.item(), 4))
        return norm

    def clip_gradients_value(self, module, optimizer, clip_val):
        EVENTS.append(["clip_gradients_value", kind(module), kind(optimizer), clip_val])
        return super().clip_gradients_value(module, optimizer, clip_val)

    def all_reduce(self, tensor, group=None, reduce_op="mean"):
        EVENTS.append(["all_reduce", reduce_op])
        return super().all_reduce(tensor, group, reduce_op)

    def all_gather(self, tensor, group=None, sync_grads=False):
        EVENTS.append(["all_gather", sync_grads])
        return super().all_gather(tensor, group, sync_grads)

    def barrier(self, name=None):
        EVENTS.append("barrier")
        super().barrier(name)

    def broadcast(self, obj, src=0):
        if isinstance(obj, float):
            EVENTS.append(["broadcast", src])
        return super().broadcast(obj, src)

    def get_module_state_dict(self, module):
        state = super().get_module_state_dict(module)
        EVENTS.append(["get_module_state_dict", kind(module), sorted(state)])
        return {**state, "extra": torch.ones(1)}

    def load_module_state_dict(self, module, state_dict, strict=True):
        EVENTS.append(["load_module_state_dict", kind(module), sorted(state_dict), strict])
        super().load_module_state_dict(module, {k: v for k, v in state_dict.items() if k != "extra"}, strict=strict)

    def get_optimizer_state(self, optimizer):
        EVENTS.append(["get_optimizer_state", kind(optimizer)])
        return super().get_optimizer_state(optimizer)

    def save_checkpoint(self, path, state, storage_options=None, filter=None):  # noqa: A002  Lightning's name
        EVENTS.append(["save_checkpoint", {name: kind(value) for name, value in state.items()}, kind(filter)])
        super().save_checkpoint(path=path, state={**state, "added": 5}, storage_options=storage_options, filter=filter)

    def load_checkpoint(self, path, state=None, strict=True, weights_only=None):
        EVENTS.append(["load_checkpoint", kind(state), strict, weights_only])
        rest = super().load_checkpoint(path=path, state=state, strict=strict, weights_only=weights_only)
        return {name: value for name, value in rest.items() if name == "added"}

    def module_init_context(self, empty_init=None):
        EVENTS.append(["module_init_context", empty_init])
        return super().module_init_context(empty_init=empty_init)

    def tensor_init_context(self):
        EVENTS.append("tensor_init_context")
        return super().tensor_init_context()


class TracedDDP(Traced, DDPStrategy):
    pass


class TracedDevice(Traced, SingleDeviceStrategy):
    pass


def rank():
    return int(os.environ.get("LOCAL_RANK", "0"))


def data(size=2):
    return DataLoader(torch.arange(16.0).reshape(8, 2) / 8, batch_size=size)


def device_or_ddp(devices, **options):
    return TracedDevice(**options) if devices == 1 else TracedDDP(**options)


def loop(fabric, model, optimizer, loader, epochs=2):
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            fabric.backward(model(batch))
            optimizer.step()


def methods(devices):
    """Call everything once."""
    fabric = Fabric(accelerator="cpu", devices=devices, strategy=device_or_ddp(devices))
    fabric.launch()
    with fabric.init_module():
        module = Net()
    with fabric.init_tensor():
        torch.zeros(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer, scheduler = fabric.setup(module, optimizer, scheduler=scheduler)
    loader = fabric.setup_dataloaders(data())
    loop(fabric, model, optimizer, loader, 1)
    scheduler.step()
    for i, batch in enumerate(loader):
        optimizer.zero_grad()
        fabric.backward(model(batch), model=model)
        fabric.clip_gradients(model, optimizer, **({"max_norm": 0.5} if i % 2 else {"clip_val": 0.25}))
        optimizer.step()
    found = [fabric.all_reduce(torch.tensor(1.0 + rank()), reduce_op="sum").item()]
    found += fabric.all_gather(torch.tensor([2.0 + rank()])).flatten().tolist()
    found.append(fabric.broadcast(3.0 + rank()))
    fabric.barrier()
    return {"weights": numbers(module), "found": found, "events": EVENTS}


def checkpoints(devices):
    """Save, train on, and load."""
    fabric = Fabric(accelerator="cpu", devices=devices, strategy=device_or_ddp(devices))
    fabric.launch()
    module = Net()
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.5))
    loader = fabric.setup_dataloaders(data())
    loop(fabric, model, optimizer, loader, 1)
    EVENTS.clear()
    state = {"model": model, "optimizer": optimizer, "step": 4}
    fabric.save("run.ckpt", state)
    written = torch.load("run.ckpt", weights_only=False)
    names = sorted(name for name in written if name != "lightlib"), sorted(written["model"])
    before = numbers(module)
    EVENTS.append("trains")
    for batch in loader:
        optimizer.zero_grad()
        fabric.backward(model(batch))
        optimizer.step()
    state["step"] = 0
    rest = fabric.load("run.ckpt", state)
    torch.save(module.state_dict(), f"raw{rank()}.pt")
    fabric.load_raw(f"raw{rank()}.pt", model)
    same = before == numbers(module)
    return {"names": names, "same": same, "rest": rest, "step": state["step"], "events": EVENTS}


class Around(torch.nn.Module):
    """Doubles the output of a module."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return 2 * self.module(*args)


class Wrapping(SingleDeviceStrategy):
    def setup_module(self, module):
        return Around(super().setup_module(module))

    def setup_optimizer(self, optimizer):
        optimizer.param_groups[0]["lr"] *= 0.5
        return super().setup_optimizer(optimizer)

    def backward(self, tensor, module, *args, **kwargs):
        EVENTS.append(["backward", kind(module)])
        super().backward(tensor / 4, module, *args, **kwargs)

    def optimizer_step(self, optimizer, **kwargs):
        EVENTS.append(["optimizer_step", sorted(kwargs)])
        return super().optimizer_step(optimizer, **kwargs)


def wrapping(devices):
    """Call a wrapper of the strategy's, also through a marked method, and step with a closure."""
    fabric = Fabric(accelerator="cpu", devices=1, strategy=Wrapping())
    module = Net()
    model = fabric.setup_module(module)
    model.mark_forward_method("twice")
    optimizer = fabric.setup_optimizers(torch.optim.SGD(module.parameters(), lr=0.02))
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = model.twice(batch)
        fabric.backward(loss, model=model)
        losses.append(round(loss.item(), 5))
        return loss

    for batch in fabric.setup_dataloaders(data(4)):
        losses.append(round(optimizer.step(closure).item(), 5))
        losses.append(round(model(batch).item(), 5))
    return {"losses": losses, "weights": numbers(module), "events": EVENTS}


class Hooked(DDPStrategy):
    """Averages by a hook, as DistributedDataParallel offers it."""

    def setup_module(self, module):
        ddp = super().setup_module(module)
        ddp.register_comm_hook(None, self.half)
        return ddp

    @staticmethod
    def half(state, bucket):  # noqa: ARG004  torch's signature
        EVENTS.append(["hook", bucket.buffer().numel()])
        future = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / 4)


def hooked(devices):
    """Accumulate with a hook: it runs where gradients are reduced."""
    fabric = Fabric(accelerator="cpu", devices=devices, strategy=Hooked(find_unused_parameters=False))
    fabric.launch()
    module = Net()
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.01))
    for i, batch in enumerate(fabric.setup_dataloaders(data(1))):
        with fabric.no_backward_sync(model, enabled=i % 2 == 0):
            fabric.backward(model(batch))
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
    return {"weights": numbers(module), "events": EVENTS}


class Scratch(Strategy):
    """Written from scratch, on one device."""

    @property
    def root_device(self):
        return torch.device("cpu")

    @property
    def is_global_zero(self):
        return True

    def module_to_device(self, module):
        EVENTS.append("module_to_device")

    def setup_module(self, module):
        EVENTS.append("setup_module")
        return Around(module)

    def all_reduce(self, tensor, group=None, reduce_op="mean"):
        return tensor * 10

    def all_gather(self, tensor, group=None, sync_grads=False):
        return tensor.unsqueeze(0)

    def barrier(self, name=None):
        EVENTS.append("barrier")

    def broadcast(self, obj, src=0):
        return obj


def scratch(devices):
    fabric = Fabric(accelerator="cpu", devices=1, strategy=Scratch())
    fabric.launch()
    module = Net()
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.01))
    loop(fabric, model, optimizer, fabric.setup_dataloaders(data()))
    found = [fabric.all_reduce(torch.tensor(1.5)).item(), fabric.all_gather(torch.tensor([2.0])).tolist()]
    fabric.barrier()
    fabric.save("run.ckpt", {"model": model})
    EVENTS.append(sorted(torch.load("run.ckpt")["model"]))
    return {"weights": numbers(module), "found": found, "events": EVENTS}


class Control(_BackwardSyncControl):
    @contextmanager
    def _without(self, module):
        EVENTS.append(["no sync", kind(module)])
        with module.no_sync():
            yield

    def no_backward_sync(self, module, enabled):
        EVENTS.append(["no_backward_sync", kind(module), enabled])
        return self._without(module) if enabled else torch.enable_grad()


class Controlled(DDPStrategy):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._backward_sync_control = Control()


def controlled(devices):
    """Accumulate by a control of the user's."""
    fabric = Fabric(accelerator="cpu", devices=devices, strategy=Controlled())
    fabric.launch()
    module = Net()
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.01))
    for i, batch in enumerate(fabric.setup_dataloaders(data(1))):
        with fabric.no_backward_sync(model, enabled=i % 2 == 0):
            fabric.backward(model(batch))
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
    return {"weights": numbers(module), "events": EVENTS}


def main() -> None:
    warnings.simplefilter("ignore")
    case, devices = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    torch.manual_seed(0)
    found = globals()[case](devices)
    if int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))) == 0:
        print("RESULT " + json.dumps(found), flush=True)  # noqa: T201  the test reads it


if __name__ == "__main__":
    main()
