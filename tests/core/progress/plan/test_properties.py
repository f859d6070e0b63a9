"""Random runs against a reference of twenty lines: where they validate, log, step and stop."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightlib.callbacks.callback import Callback
from tests.runs.modules import Weight
from tests.runs.plain import Unsized, quiet_trainer, same_weights


def reference(
    n, accumulate, epochs, max_steps, interval, every_n_epochs, log_every, stop_at, least_epochs, least_steps
):
    """Count in a plain loop: return the events, and (epoch, batch of the epoch, batch, step) at the end."""
    events, epoch, i, batch, step, asked = [], 0, 0, 0, 0, False
    every = interval if isinstance(interval, int) else n if interval == 1.0 else max(1, int(n * interval))
    while epoch < epochs and step < max_steps:
        for i in range(1, n + 1):
            closes = i % accumulate == 0 or i == n
            batch, step, asked = batch + 1, step + closes, asked or batch + 1 == stop_at
            if closes and step % log_every == 0:
                events.append(("log", step))
            stop = asked and closes and epoch >= least_epochs and step >= least_steps
            due = (batch if every_n_epochs is None else i) % every == 0 or stop
            if due and (epoch + 1) % (every_n_epochs or 1) == 0:
                events.append(("validate", batch))
            if i < n and (stop or step == max_steps):
                return events, (epoch, i, batch, step)
        epoch, i = epoch + 1, 0
        asked = asked and epoch >= least_epochs and step >= least_steps
        if asked:
            break
    return events, (epoch, i, batch, step)


class Counts(Weight):
    """One weight, a count of its steps, and a list of all events."""

    def __init__(self, stop_at):
        super().__init__()
        self.stop_at = stop_at
        self.events, self.seen, self.steps = [], [], 0

    def training_step(self, batch, batch_idx):
        self.seen.append((self.current_epoch, batch_idx, int(batch)))
        self.log("batch", float(batch))
        if len(self.seen) == self.stop_at:
            self.trainer.should_stop = True
        return self.weight.sum()

    def on_before_optimizer_step(self, optimizer):
        self.steps += 1

    def validation_step(self, batch, batch_idx):
        self.events.append(("validate", len(self.seen)))

    def on_log(self, metrics):
        self.events.append(("log", self.global_step))


@st.composite
def runs(draw):
    """Arguments of a Trainer, the loader, and the same in the reference's terms."""
    length = draw(st.integers(1, 8))
    sized = draw(st.booleans())
    limit = draw(
        st.none() | st.integers(1, 9) | (st.sampled_from([0.5, 1.0]) if sized and length > 1 else st.nothing())
    )
    n = length if limit is None else min(length, limit) if isinstance(limit, int) else int(length * limit)
    every_n_epochs = draw(st.none() | st.integers(1, 3))
    if every_n_epochs is None:
        interval = draw(st.integers(1, 11))
    else:
        fractions = st.sampled_from([0.2, 0.25, 0.5, 0.7, 1.0]) if sized else st.just(1.0)
        interval = draw(st.integers(1, n) | fractions)
    epochs = draw(st.integers(1, 4))
    max_steps = draw(st.just(-1) | st.integers(1, 12))
    least_epochs, least_steps = draw(st.integers(0, epochs)), draw(st.integers(0, 12 if max_steps == -1 else max_steps))
    arguments = {
        "max_epochs": epochs,
        "max_steps": max_steps,
        "min_epochs": least_epochs,
        "min_steps": least_steps,
        "accumulate_grad_batches": draw(st.integers(1, 4)),
        "limit_train_batches": limit,
        "val_check_interval": interval,
        "check_val_every_n_epoch": every_n_epochs,
        "log_every_n_steps": draw(st.integers(1, 3)),
    }
    return n, length, sized, arguments, draw(st.just(0) | st.integers(1, 12))


@settings(max_examples=150, derandomize=True)
@given(runs())
def test_counters_and_moments(run):
    n, length, sized, arguments, stop_at = run
    items = [torch.tensor(float(i)) for i in range(length)]
    module, trainer = Counts(stop_at), quiet_trainer(**arguments)
    trainer.fit(module, items if sized else Unsized(items), [torch.zeros(1)])

    events, (epoch, i, batch, step) = reference(
        n,
        arguments["accumulate_grad_batches"],
        arguments["max_epochs"],
        math.inf if arguments["max_steps"] == -1 else arguments["max_steps"],
        arguments["val_check_interval"],
        arguments["check_val_every_n_epoch"],
        arguments["log_every_n_steps"],
        stop_at,
        arguments["min_epochs"],
        arguments["min_steps"],
    )
    progress = trainer.progress
    assert (progress.epoch, progress.epoch_batch, progress.batch, progress.step) == (epoch, i, batch, step)
    assert (trainer.current_epoch, trainer.global_step) == (epoch, step)
    assert module.events == events
    assert module.steps == step
    assert module.seen == [(k // n, k % n, k % n) for k in range(batch)]


@settings(max_examples=40, derandomize=True)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.none() | st.integers(1, 12))
def test_estimated_steps_are_the_steps_taken(n, accumulate, epochs, max_steps):
    arguments = {"max_epochs": epochs, "max_steps": -1 if max_steps is None else max_steps}
    trainer = quiet_trainer(accumulate_grad_batches=accumulate, limit_val_batches=0, **arguments)
    module = Counts(0)
    estimated = []
    module.on_fit_start = lambda: estimated.append(trainer.estimated_stepping_batches)
    trainer.fit(module, [torch.zeros(1)] * n)
    assert estimated == [trainer.global_step] == [module.steps]


class Draws(Counts):
    """A weight that depends on every batch, every random number and every validation so far."""

    not_in_checkpoint = ("events",)

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        self.log("mean", float(batch), on_step=False, on_epoch=True)
        return (self.weight * (batch + torch.rand(1))).sum()

    def validation_step(self, batch, batch_idx):
        self.events.append(("validate", self.trainer.progress.batch))
        torch.rand(1)

    def on_log(self, metrics):
        self.events.append((self.global_step, dict(metrics)))


class SavesOnce(Callback):
    """Saves at one optimizer step, and keeps the number of events before it."""

    not_in_checkpoint = ("happened",)

    def __init__(self, step, path):
        self.step, self.path, self.happened = step, path, None

    def on_accumulation_end(self, trainer, pl_module):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)

    def on_checkpoint_written(self, trainer, pl_module, path):
        self.happened = len(pl_module.events)


@settings(max_examples=60, derandomize=True)
@given(runs(), st.integers(1, 12))
def test_resumed_anywhere(run, step):
    _, length, sized, arguments, _ = run
    items = [torch.tensor(float(i)) for i in range(length)]
    saves = SavesOnce(step, "one.ckpt")
    whole, trainer = Draws(0), quiet_trainer(callbacks=[saves], **arguments)
    torch.manual_seed(1)
    trainer.fit(whole, items if sized else Unsized(items), [torch.zeros(1)])
    if saves.happened is None or step == arguments["max_steps"]:
        return
    module, again = Draws(0), quiet_trainer(**arguments)
    torch.manual_seed(2)
    again.fit(module, items if sized else Unsized(items), [torch.zeros(1)], ckpt_path="one.ckpt")
    assert again.progress == trainer.progress
    assert module.events == whole.events[saves.happened :]
    assert same_weights(module, whole)
