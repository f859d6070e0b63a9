"""Programs with strategies that override Lightning's methods."""

from __future__ import annotations

import json

import torch
from base import EVENTS, Manual, Net, Tracing, Validated, loader, result, trainer, weights
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy


class Scaled(SingleDeviceStrategy):
    def pre_backward(self, closure_loss):
        EVENTS.append("strategy.pre_backward")

    def backward(self, closure_loss, optimizer, *args, **kwargs):
        EVENTS.append(["strategy.backward", type(optimizer).__name__])
        return super().backward(closure_loss * 2, optimizer, *args, **kwargs)

    def post_backward(self, closure_loss):
        EVENTS.append(["strategy.post_backward", closure_loss.requires_grad])


def backward(devices):
    module = Tracing()
    run = trainer(strategy=Scaled())
    run.fit(module, loader())
    return result(run, module)


def backward_manual(devices):
    module = Manual()
    run = trainer(strategy=Scaled())
    run.fit(module, loader())
    return result(run, module)


def backward_accumulated(devices):
    module = Tracing()
    run = trainer(strategy=Scaled(), accumulate_grad_batches=2)
    run.fit(module, loader())
    return result(run, module)


class Stepping(SingleDeviceStrategy):
    def optimizer_step(self, optimizer, closure, model=None, **kwargs):
        EVENTS.append("strategy.optimizer_step")

        def noted():
            loss = closure()
            EVENTS.append(["closure", None if loss is None else round(loss.item(), 6)])
            return loss

        output = super().optimizer_step(optimizer, noted, model, **kwargs)
        EVENTS.append("stepped")
        return output


def stepping(devices):
    module = Tracing()
    run = trainer(strategy=Stepping(), gradient_clip_val=0.5, accumulate_grad_batches=2)
    run.fit(module, loader())
    return result(run, module, steps=run.global_step, rate=run.optimizers[0].param_groups[0]["lr"])


def stepping_manual(devices):
    module = Manual()
    run = trainer(strategy=Stepping())
    run.fit(module, loader())
    return result(run, module, steps=run.global_step)


class Steps(DDPStrategy):
    def training_step(self, *args, **kwargs):
        EVENTS.append("training_step")
        return super().training_step(*args, **kwargs) * 3

    def validation_step(self, *args, **kwargs):
        EVENTS.append("validation_step")
        return super().validation_step(*args, **kwargs)

    def predict_step(self, batch, *args, **kwargs):
        return super().predict_step(batch * 2, *args, **kwargs)


def steps(devices):
    module = Validated()
    run = trainer(strategy=Steps(), devices=devices)
    run.fit(module, loader(), loader())
    outputs = run.predict(module, loader())
    return result(run, module, outputs=[round(value, 6) for out in outputs for value in out.flatten().tolist()])


def spawned(devices):
    module = Validated()
    run = trainer(strategy=Steps(start_method="spawn"), devices=devices)
    run.fit(module, loader(), loader())
    return {"weights": weights(module)}


class Reducing(DDPStrategy):
    def reduce(self, tensor, group=None, reduce_op="mean"):
        EVENTS.append(["reduce", str(reduce_op)])
        return super().reduce(tensor, group, reduce_op) * 10


class Levels(Net):
    """Logs without means, which divide by a reduced batch size."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("step", loss, on_step=True, on_epoch=False, sync_dist=True)
        self.log("sum", loss, on_step=False, on_epoch=True, sync_dist=True, reduce_fx="sum")
        self.log("max", loss, on_step=False, on_epoch=True, sync_dist=True, reduce_fx="max")
        self.log("mean", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss


def reducing(devices):
    module = Levels()
    run = trainer(strategy=Reducing(), devices=devices)
    run.fit(module, loader())
    direct = run.strategy.reduce(torch.tensor(float(run.global_rank + 1)), reduce_op="sum").item()
    found = result(run, module, direct=direct)
    return {**found, "events": sorted({json.dumps(event) for event in EVENTS})}


class Lifecycle(SingleDeviceStrategy):
    def connect(self, model):
        EVENTS.append("connect")
        super().connect(model)

    def setup_environment(self):
        EVENTS.append("setup_environment")
        super().setup_environment()

    def setup(self, trainer):
        EVENTS.append(["setup", trainer.state.fn.value])
        super().setup(trainer)

    def model_to_device(self):
        EVENTS.append("model_to_device")
        super().model_to_device()

    def process_dataloader(self, dataloader):
        EVENTS.append(["process_dataloader", len(dataloader)])
        return super().process_dataloader(dataloader)

    def batch_to_device(self, batch, device=None, dataloader_idx=0):
        EVENTS.append("batch_to_device")
        return super().batch_to_device(batch + 1, device, dataloader_idx)

    def teardown(self):
        EVENTS.append("teardown")
        super().teardown()

    def on_train_start(self):
        EVENTS.append("strategy.on_train_start")

    def on_train_batch_start(self, batch, batch_idx):
        EVENTS.append(["strategy.on_train_batch_start", batch_idx])

    def on_validation_start(self):
        EVENTS.append("strategy.on_validation_start")

    def on_validation_end(self):
        EVENTS.append("strategy.on_validation_end")

    def on_train_end(self):
        EVENTS.append("strategy.on_train_end")


class Hooks(Validated):
    def on_train_start(self):
        EVENTS.append("module.on_train_start")

    def on_train_batch_start(self, batch, batch_idx):
        EVENTS.append(["module.on_train_batch_start", batch_idx])

    def on_validation_start(self):
        EVENTS.append("module.on_validation_start")

    def on_validation_end(self):
        EVENTS.append("module.on_validation_end")

    def on_train_end(self):
        EVENTS.append("module.on_train_end")


def lifecycle(devices):
    module = Hooks()
    run = trainer(strategy=Lifecycle(), max_epochs=1)
    run.fit(module, loader(size=4), loader(size=8))
    others = ("batch_to_device", "process_dataloader")
    order = [event for event in EVENTS if event not in others and event[0] not in others]
    loaders = [event for event in EVENTS if event[0] == "process_dataloader"]
    return {**result(run, module), "events": order, "moved": EVENTS.count("batch_to_device"), "loaders": loaders}


class Failing(SingleDeviceStrategy):
    def on_exception(self, exception):
        EVENTS.append(["on_exception", str(exception)])


def exception(devices):
    class Breaking(Net):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("broken")

    try:
        trainer(strategy=Failing()).fit(Breaking(), loader())
    except RuntimeError:
        EVENTS.append("raised")
    return {"events": EVENTS}
