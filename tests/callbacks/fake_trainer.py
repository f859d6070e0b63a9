"""A stand-in for the Trainer: the attributes that callbacks read, and a save of a small file."""

from __future__ import annotations

import math
import os
from types import SimpleNamespace

import torch

from lightlib.core.progress.plan import Plan
from lightlib.errors import CheckpointWriteError
from lightlib.strategies.extension import Extension


class FakeStrategy:
    """A strategy for one device: each collective returns its input."""

    extension = Extension()

    def __init__(self):
        self.data = self

    def broadcast(self, value):
        return value

    def all_gather_object(self, value):
        return [value]

    def barrier(self):
        pass

    def reduce_boolean_decision(self, decision, all=True):  # noqa: A002 - Lightning's name
        return decision


class FakeTrainer:
    """Runs the hooks of one callback, and saves, at the same places as the loop."""

    def __init__(self, folder=".", **attributes):
        self.callback_metrics = {}
        self.progress = SimpleNamespace(epoch=0, epoch_batch=0, batch=0, step=0, validated=0)
        self.state = SimpleNamespace(fn="fit", stage="train")
        self.strategy = FakeStrategy()
        self.loggers = []
        self.hooks = SimpleNamespace(defines=lambda name: False)
        self.log_dir = None
        self.default_root_dir = str(folder)
        self.num_val_batches = [1]
        self.val_check_interval = 1.0
        self.check_val_every_n_epoch = 1
        self.plan = Plan(validate_every=math.inf)
        self.sanity_checking = self.validating = False
        self.fast_dev_run = False
        self.is_global_zero = True
        self.world_size = 1
        self.global_rank = 0
        self.stop_signal = None
        self.run = None
        self.should_stop = False
        self.ckpt_path = None
        self.run_id = "run"
        self.continues = self.resumed_by_path = False
        self.resumed_label = None
        self.callbacks = []
        self.checkpoint_callbacks = []
        self.accumulate_grad_batches = 1
        self.log_every_n_steps = 50
        self.optimizers = []
        self.lr_scheduler_configs = []
        self.logged = []
        self.written = []
        self.formats = []
        self.full = False
        self._asked = []
        vars(self).update(attributes)

    overrides_save_checkpoint = False

    @property
    def current_epoch(self):
        return self.progress.epoch

    @property
    def global_step(self):
        return self.progress.step

    def log_metrics_now(self, metrics, step=None):
        self.logged.append((step, metrics))

    @property
    def saver(self):
        return self

    def request(self, call, of_validation=False):
        self._asked.append(call)

    def save_point(self):
        asked, self._asked = self._asked, []
        for call in asked:
            call()

    def save_checkpoint(self, path, weights_only=None, *, format=None, writer=None):  # noqa: A002 - as in Trainer
        self.formats.append(format)
        if writer is not None:
            writer.save(str(self.progress.step), lambda content: self._write(path, content))
        else:
            self._write(path, str(self.progress.step))

    def _write(self, path, content):
        if self.full:
            raise CheckpointWriteError(f"The checkpoint {path!r} could not be written: disk full.")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.part", "w") as file:
            file.write(content)
        os.replace(f"{path}.part", path)
        self.written.append(os.path.basename(path))

    # the loop, as far as callbacks see it

    def start(self, callback, module=None):
        self.callback = callback
        self.module = module = torch.nn.Module() if module is None else module
        self.checkpoint_callbacks = [*self.checkpoint_callbacks, callback]
        callback.setup(self, module, "fit")
        callback.on_train_start(self, module)
        return self

    def batch(self, validate=None, step=True, **metrics):
        """One batch; with `validate`, a validation that logs these metrics."""
        self.progress.batch += 1
        self.progress.epoch_batch += 1
        self.progress.step += step
        self.log(**metrics)
        self.callback.on_train_batch_end(self, self.module, {}, None, self.progress.epoch_batch - 1)
        if validate is not None:
            self.validate(**validate)
        self.save_point()

    def validate(self, **metrics):
        self.callback.on_validation_start(self, self.module)
        self.log(**metrics)
        self.progress.validated = self.progress.batch
        self.callback.on_validation_end(self, self.module)

    def end_epoch(self, **metrics):
        self.log(**metrics)
        self.callback.on_train_epoch_end(self, self.module)
        self.progress.epoch += 1
        self.progress.epoch_batch = 0
        self.save_point()

    def epoch(self, batches=2, **validation):
        """One epoch with one validation at its end."""
        for index in range(batches):
            self.batch(validate=validation if index == batches - 1 and validation else None)
        self.end_epoch()

    def log(self, **metrics):
        self.callback_metrics |= {
            name.replace("__", "/"): torch.tensor(float(value)) for name, value in metrics.items()
        }
