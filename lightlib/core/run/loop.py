"""The order of a run, from top to bottom. Nothing is kept here; what is counted is in `run.progress`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, enable_grad
from torch.optim import Optimizer

from lightlib.core.optimization.window import closure_called_again, closure_not_called, detached, unusable
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.core.run.hooks import SKIP_EPOCH, nothing
from lightlib.core.run.run import PREDICT, SANITY_CHECK, VALIDATION, Run, Stage

__all__ = ["automatic", "backward", "closure", "evaluate", "fit", "manual", "manual_backward", "manual_step", "predict"]

LAST = sys.maxsize  # after all evaluation batches, of which processes may have different numbers


def fit(run: Run) -> None:
    """Train until the plan is done or somebody asks for a stop."""
    hooks, plan, progress = run.hooks, run.plan, run.progress
    hooks.on_fit_start()
    if plan.sanity_check_due(progress):
        with run.at_stage(SANITY_CHECK):
            hooks.on_sanity_check_start()
            evaluate(run, SANITY_CHECK)
            hooks.on_sanity_check_end()
    if run.resumed_whole or not plan.done(progress):  # a run that was killed at its very end has still to end
        run.deferring = True
        hooks.on_train_start()
        run.begin_training()
        while not run.plan.done(progress) and not run.stopping():
            train_epoch(run)
        run.end_training()
        hooks.on_train_end()
    hooks.on_fit_end()


def train_epoch(run: Run) -> None:
    """Train until the data of this epoch is exhausted or the run ends within it."""
    hooks, progress, data = run.hooks, run.progress, run.train_data
    assert data is not None
    if not progress.begun:
        hooks.on_train_epoch_start()
        progress.begun = 1
    timed = run.begin_epoch().validate_every_seconds is not None
    while True:  # what is due? The same question after a batch and after a resume.
        plan = run.plan  # a hook may have changed a limit
        stopping = run.stop_asked and run.stopping()
        if plan.validation_due(progress, data.exhausted, stopping, run.since_validation() if timed else 0.0):
            evaluate(run, VALIDATION)
            run.end_validation()
            stopping = run.stopping()
        if run.asked:
            run.save_if_asked()
        if run.signals.received is not None:
            run.leave_if_possible()
        if data.exhausted or stopping or plan.done(progress):
            break
        train_batch(run, next(data))
    run.results.end_epoch()
    hooks.on_train_epoch_end()  # also when the run stops within the epoch
    run.log_epoch()
    if data.exhausted:
        run.schedules.step_epoch(progress)
        progress.end_epoch()
        data.end_epoch()
        run.results.train.clear()
        hooks.on_fit_epoch_end()
        run.look_for_steps()
    run.save_if_asked()
    run.refuse_early_stop()


def train_batch(run: Run, batch: Any) -> None:
    """Run one batch, and the optimizer step if it closes an accumulation window."""
    hooks, plan, progress, data, table = run.hooks, run.plan, run.progress, run.train_data, run.results.train
    assert data is not None
    i = progress.epoch_batch
    table.batch, table.batch_size = batch, None
    if hooks.on_train_batch_start(batch, i) == SKIP_EPOCH:
        data.skip_epoch()
        return
    window = run.window
    window.stepped = False
    output = run.optimization(run, batch, i, plan.steps_now(progress, data.exhausted))
    stepped = window.stepped
    progress.end_batch(stepped)
    if hooks.on_train_batch_end is not nothing:
        hooks.on_train_batch_end(detached(output), batch, i)
    if stepped:
        hooks.on_accumulation_end()
        if plan.logging_due(progress):
            run.log_step()
    window.loss = None  # and its graph


def automatic(run: Run, batch: Any, i: int, steps_now: bool) -> Any:
    """Forward, backward, and when the window closes: unscale, clip, step."""
    window, hooks, optimizers, scaler = run.window, run.hooks, run.optimizers, run.scaler
    if run.plan.window_starts(run.progress) or not window.planned:
        open_window(run)
    output = run.strategy.forward_backward(batch, i, run.backward, steps_now)
    if steps_now and window.taken:
        close_window(run)
        for optimizer in optimizers:
            hooks.on_before_optimizer_step(optimizer)
            if run.clip is not None:
                run.clip(optimizer)
            if scaler is None:
                optimizer.step()
                window.stepped = True
            else:
                window.stepped |= scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        if window.stepped and run.schedules.by_step:
            run.schedules.step_batch(run.progress)
    return output


def open_window(run: Run) -> None:
    """Begin to accumulate: with no gradients."""
    run.window.open(run.plan.window_size(run.progress))
    for optimizer in run.optimizers:
        run.hooks.on_before_zero_grad(optimizer)
        run.zero_grad(optimizer)


def close_window(run: Run) -> None:
    """End accumulation: the gradients are those of the window's mean loss."""
    if run.scaler is not None:
        for optimizer in run.optimizers:
            run.scaler.unscale(optimizer)
    run.window.close(run.optimizers)


def backward(run: Run, output: Any, by: Callable[[Tensor], None] | None = None, parts: int = 1) -> None:
    """Differentiate what a step returned for one of `parts` micro-batches; `by` is an engine's own backward."""
    loss = run.window.loss_of(output, parts)
    if loss is None:
        return
    if run.scaler is not None:
        loss = run.scaler.scale(loss)
    run.hooks.on_before_backward(loss)
    (by or run.module_backward)(loss)
    run.hooks.on_after_backward()


def closure(run: Run, batch: Any, i: int, steps_now: bool) -> Any:
    """The same calls from within `optimizer.step(closure)`: for LBFGS and others' optimizers, and `optimizer_step`."""
    window, hooks = run.window, run.hooks
    outputs: list[Any] = []

    @enable_grad()
    def forward_backward() -> Any:
        if run.plan.window_starts(run.progress) or not window.planned:
            open_window(run)
        elif outputs:
            raise closure_called_again(run.plan.accumulate)
        outputs.append(run.strategy.forward_backward(batch, i, run.backward, steps_now))
        if steps_now and window.taken:
            close_window(run)
            for optimizer in run.optimizers:
                hooks.on_before_optimizer_step(optimizer)
                if run.clip is not None:
                    run.clip(optimizer)
        return run.value_of_all()

    if not steps_now:
        forward_backward()
        return outputs[-1]
    owner: list[LightningOptimizer] = []  # the first that calls its closure; LBFGS does so several times
    for handle in run.handles:

        def once(handle: LightningOptimizer = handle) -> Any:
            owner[:] = owner or [handle]
            return forward_backward() if owner[0] is handle else window.value

        assert run.step_method is not None
        run.step_method(run.progress.epoch, i, handle, once)
    if not outputs:
        raise closure_not_called(run.module, i)
    if run.scaler is not None and window.taken:
        run.scaler.update()
    if not window.taken:  # every loss of the window was None: no gradients, and no step that counts
        window.stepped = False
    if window.stepped:
        run.schedules.step_batch(run.progress)
    return outputs[-1]


def closure_step(run: Run, optimizer: Optimizer, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
    """`optimizer.step(closure)` as `closure` above hands it out: with a scaler the closure runs first, and once."""
    if run.scaler is None:
        return optimizer.step(closure, **options) if closure is not None else optimizer.step(**options)
    loss = closure() if closure is not None else None
    if run.window.taken:
        run.scaler.step(optimizer)
    return loss


def manual(run: Run, batch: Any, i: int, steps_now: bool) -> Any:  # noqa: ARG001  one signature for all three
    """The user's step does everything; what it returns is handed to the hooks."""
    output = run.strategy.forward_backward(batch, i, nothing, True)
    if run.scaler is not None:
        run.scaler.update()
    return output


def manual_backward(run: Run, loss: Any, *args: Any, **kwargs: Any) -> None:
    """`self.manual_backward(loss)`."""
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise unusable(loss, "manual_backward got")
    run.window.loss = loss.detach()
    if run.scaler is not None:
        loss = run.scaler.scale(loss)
    run.hooks.on_before_backward(loss)
    run.module_backward(loss, *args, **kwargs)
    run.hooks.on_after_backward()


def manual_step(run: Run, optimizer: Optimizer, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
    """`self.optimizers().step()`."""
    if run.scaler is None and closure is not None:

        def with_hook() -> Any:
            loss = closure()
            run.strategy.sync_gradients(optimizer)
            run.hooks.on_before_optimizer_step(optimizer)
            return loss

        return optimizer.step(with_hook, **options)
    loss = closure() if closure is not None else None
    run.strategy.sync_gradients(optimizer)
    if run.scaler is not None:
        run.scaler.unscale(optimizer)
    run.hooks.on_before_optimizer_step(optimizer)
    if run.scaler is None:
        return optimizer.step(**options)
    run.scaler.step(optimizer)
    return loss


def evaluate(run: Run, stage: Stage) -> list[dict[str, float]]:
    """Sanity check, validation and test. Return the metrics, one dictionary per loader."""
    hooks, name = run.hooks, stage.name
    with run.evaluating(stage) as data:
        step = getattr(run.strategy, f"{name}_step")
        getattr(hooks, f"on_{name}_start")()
        getattr(hooks, f"on_{name}_epoch_start")()
        before, after = getattr(hooks, f"on_{name}_batch_start"), getattr(hooks, f"on_{name}_batch_end")
        limits = [min(n, run.plan.sanity_batches) for n in data.num_batches] if stage is SANITY_CHECK else None
        table, several = run.results.table, data.num_loaders > 1
        for batch, i, loader in data.batches(limits):
            if run.signals.received is not None:
                run.leave_if_possible()
            table.batch, table.batch_size, table.loader = batch, None, loader
            where = (i, loader) if several else (i,)
            before(batch, *where)
            output = step(batch, *where)
            after(output, batch, *where)
            run.log_evaluation_step()
            run.evaluated += run.leavable
        table.loader, run.evaluated = 0, LAST * run.leavable
        if run.signals.received is not None:
            run.leave_if_possible()
        run.results.end_epoch()
        getattr(hooks, f"on_{name}_epoch_end")()
        metrics = run.close_evaluation()
        getattr(hooks, f"on_{name}_end")()
    return metrics


def predict(run: Run, keep: bool) -> list[list[Any]]:
    """Predict every batch. Return what `predict_step` returned, one list per loader; empty lists unless `keep`."""
    hooks = run.hooks
    with run.evaluating(PREDICT) as data:
        outputs: list[list[Any]] = [[] for _ in range(data.num_loaders)]
        hooks.on_predict_start()
        hooks.on_predict_epoch_start()
        table, several = run.results.table, data.num_loaders > 1
        for batch, i, loader in data.batches():
            if run.signals.received is not None:
                raise run.signals.received
            table.batch, table.batch_size, table.loader = batch, None, loader
            where = (i, loader) if several else (i,)
            hooks.on_predict_batch_start(batch, *where)
            output = run.strategy.predict_step(batch, *where)
            hooks.on_predict_batch_end(output, batch, *where)
            if keep:
                outputs[loader].append(output)
        hooks.on_predict_epoch_end()
        hooks.on_predict_end()
    return outputs
