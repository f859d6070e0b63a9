"""Programs with precisions that override Lightning's methods."""

from __future__ import annotations

import torch
from base import EVENTS, Net, Tracing, Validated, loader, result, trainer
from lightning.pytorch.plugins.precision import DoublePrecision, MixedPrecision, Precision


class Doubling(Precision):
    precision = "32-true"

    def convert_input(self, data):
        return super().convert_input(data) * 2

    def convert_module(self, module):
        EVENTS.append("convert_module")
        return super().convert_module(module)

    def forward_context(self):
        EVENTS.append("forward_context")
        return super().forward_context()


def precision_inputs(devices):
    module = Validated()
    run = trainer(plugins=[Doubling()], max_epochs=1)
    run.fit(module, loader(), loader())
    return result(run, module, precision=run.precision)


class Backwards(Precision):
    def pre_backward(self, tensor, module):
        EVENTS.append("precision.pre_backward")
        return super().pre_backward(tensor * 3, module)

    def backward(self, tensor, model, optimizer, *args, **kwargs):
        EVENTS.append("precision.backward")
        super().backward(tensor, model, optimizer, *args, **kwargs)

    def post_backward(self, tensor, module):
        EVENTS.append("precision.post_backward")
        return super().post_backward(tensor, module)

    def optimizer_step(self, optimizer, model, closure, **kwargs):
        EVENTS.append("precision.optimizer_step")
        return super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)

    def clip_grad_by_norm(self, optimizer, clip_val):
        EVENTS.append(["precision.clip_grad_by_norm", clip_val])
        super().clip_grad_by_norm(optimizer, clip_val / 2)


def precision_steps(devices):
    module = Tracing()
    run = trainer(plugins=[Backwards()], gradient_clip_val=1.0)
    run.fit(module, loader())
    return result(run, module)


class Contexts(MixedPrecision):
    def train_step_context(self):
        EVENTS.append("train")
        return super().train_step_context()

    def val_step_context(self):
        EVENTS.append("val")
        return torch.autocast("cpu", enabled=False)


class Dtypes(Validated):
    def loss(self, batch):
        EVENTS.append(str(self.layer(batch).dtype))
        return super().loss(batch)


def precision_contexts(devices):
    module = Dtypes()
    run = trainer(plugins=[Contexts("bf16-mixed", "cpu")], max_epochs=1)
    run.fit(module, loader(), loader())
    return result(run, module)


class Wide(DoublePrecision):
    def convert_input(self, data):
        return super().convert_input(data) + 1


def precision_double(devices):
    module = Dtypes()
    run = trainer(plugins=[Wide()], max_epochs=1)
    run.fit(module, loader(), loader())
    return result(run, module)


class Stateful(Precision):
    def __init__(self):
        self.count = 0

    def pre_backward(self, tensor, module):
        self.count += 1
        return super().pre_backward(tensor, module)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state_dict):
        self.count = state_dict["count"]


def precision_state(devices):
    first = trainer(plugins=[Stateful()], max_epochs=1)
    first.fit(Net(), loader())
    first.save_checkpoint("precision.ckpt")
    saved = torch.load("precision.ckpt", weights_only=False)["Stateful"]
    module, precision = Net(), Stateful()
    run = trainer(plugins=[precision], max_epochs=2)
    run.fit(module, loader(), ckpt_path="precision.ckpt")
    return result(run, module, saved=saved, count=precision.count)
