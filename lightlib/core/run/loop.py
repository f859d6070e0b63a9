"""The order of a run, from top to bottom. Nothing is stored here; all counters are in `run.progress`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, enable_grad
from torch.optim import Optimizer

from lightlib.core.optimization.window import closure_called_again, closure_not_called, detached, unusable
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.core.run.hooks import SKIP_EPOCH, nothing
from lightlib.core.run.optimization import Closure, Optimization
from lightlib.core.run.parts import PREDICT, SANITY_CHECK, VALIDATION, Stage
from lightlib.core.run.run import Run


def fit(run: Run) -> None:
    """Train until the plan is done or a stop is requested."""
    hooks, plan, progress = run.hooks, run.plan, run.progress
    hooks.on_fit_start()
    if plan.sanity_check_due(progress):
        with run.at_stage(SANITY_CHECK):
            hooks.on_sanity_check_start()
            evaluate(run, SANITY_CHECK)
            hooks.on_sanity_check_end()
    if run.restored.full or not plan.done(progress):  # a run that was killed at its very end still has to end
        run.saver.defer()
        hooks.on_train_start()
        run.begin_training()
        while run.continues():
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
    progress.note_epoch_start()
    timed = run.begin_epoch().validate_every_seconds is not None
    while True:  # decide what is due, the same way after a batch and after a resume
        plan = run.plan  # a hook may have changed a limit
        stopping = bool(run.stop.waiting) and run.answer_requests()
        seconds = run.since_validation() if timed else 0.0
        if run.stop.validating or plan.validation_due(progress, data.exhausted, stopping, seconds):
            evaluate(run, VALIDATION)
            run.end_validation()
            stopping = run.answer_requests()
        if run.saver.waiting:
            run.saver.serve_requests()
        if run.signals.received is not None:
            run.leave_if_possible()
        if data.exhausted or stopping or plan.done(progress):
            break
        train_batch(run, next(data))
    run.results.end_epoch()
    hooks.on_train_epoch_end()  # also when the run stops within the epoch
    run.logs.write_epoch()
    progress.note_epoch_end()
    if data.exhausted:
        run.optimization.schedules.step_epoch(progress)
        progress.end_epoch()
        data.end_epoch()
        run.results.train.clear()
        hooks.on_fit_epoch_end()
        run.step_check.end_epoch()
    run.saver.serve_requests()
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
    window = run.optimization.window
    window.stepped = False
    output = run.optimization.run_batch(run, batch, i, plan.steps_now(progress, data.exhausted))
    stepped = window.stepped
    progress.end_batch(stepped)
    if hooks.on_train_batch_end is not nothing:
        hooks.on_train_batch_end(detached(output, window.loss if window.sums else None), batch, i)
    if stepped:
        hooks.on_accumulation_end()
        if plan.logging_due(progress):
            run.logs.write_step()
    window.loss = None  # and its graph


def automatic(run: Run, batch: Any, i: int, steps_now: bool) -> Any:
    """Forward, backward, and when the window closes: unscale, clip, step."""
    optimization, hooks = run.optimization, run.hooks
    window, scaler = optimization.window, optimization.scaler
    if run.plan.window_starts(run.progress) or not window.planned:
        open_window(run)
    output = run.strategy.forward_backward(batch, i, optimization.backward, steps_now)
    if steps_now and window.taken:
        close_window(optimization)
        for optimizer in optimization.optimizers:
            hooks.on_before_optimizer_step(optimizer)
            if optimization.clip is not None:
                optimization.clip(optimizer)
            if scaler is None:
                optimizer.step()
                window.stepped = True
            else:
                window.stepped |= scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        if window.stepped and optimization.schedules.by_step:
            optimization.schedules.step_batch(run.progress)
    return output


def open_window(run: Run) -> None:
    """Begin to accumulate, without gradients."""
    optimization = run.optimization
    optimization.window.open(run.plan.window_size(run.progress))
    for optimizer in optimization.cleared_first:
        run.hooks.on_before_zero_grad(optimizer)
        optimization.zero_grad(optimizer)


def close_window(optimization: Optimization) -> None:
    """End accumulation, so that the gradients are those of the window's mean loss."""
    if optimization.scaler is not None:
        for optimizer in optimization.optimizers:
            optimization.scaler.unscale(optimizer)
    optimization.window.close(optimization.optimizers)


def backward(optimization: Optimization, output: Any, by: Callable[..., Any] | None = None, parts: int = 1) -> None:
    """Differentiate the output of a step for one of `parts` micro-batches; `by` is an engine's own backward."""
    loss, hooks = optimization.window.loss_of(output, parts), optimization.hooks
    if loss is None:
        return
    if optimization.scaler is not None:
        loss = optimization.scaler.scale(loss)
    hooks.on_before_backward(loss)
    (by or optimization.module_backward)(loss)
    hooks.on_after_backward()


def closure(run: Run, batch: Any, i: int, steps_now: bool) -> Any:
    """Make the same calls inside `optimizer.step(closure)`: LBFGS, third-party optimizers, and `optimizer_step`."""
    optimization, hooks = run.optimization, run.hooks
    window = optimization.window
    outputs: list[Any] = []

    @enable_grad()
    def forward_backward() -> Any:
        if run.plan.window_starts(run.progress) or not window.planned:
            open_window(run)
        elif outputs:
            raise closure_called_again(run.plan.accumulate)
        outputs.append(run.strategy.forward_backward(batch, i, optimization.backward, steps_now))
        if steps_now and window.taken:
            close_window(optimization)
            for optimizer in optimization.optimizers:
                hooks.on_before_optimizer_step(optimizer)
                if optimization.clip is not None:
                    optimization.clip(optimizer)
        return optimization.loss_of_all()

    if not steps_now:
        forward_backward()
        return outputs[-1]
    owner: list[LightningOptimizer] = []  # the first one to call its closure; LBFGS does so several times
    for handle in optimization.handles:

        def once(handle: LightningOptimizer = handle) -> Any:
            owner[:] = owner or [handle]
            return forward_backward() if owner[0] is handle else window.value

        assert optimization.step_method is not None
        optimization.step_method(run.progress.epoch, i, handle, once)
    if not outputs:
        raise closure_not_called(run.module, i)
    if optimization.scaler is not None and window.taken:
        optimization.scaler.update()
    if not window.taken:  # every loss of the window was None: no gradients, so the step does not count
        window.stepped = False
    if window.stepped:
        optimization.schedules.step_batch(run.progress)
    return outputs[-1]


def closure_step(optimization: Optimization, optimizer: Optimizer, closure: Closure = None, **options: Any) -> Any:
    """Run `optimizer.step(closure)` for `closure` above; with a scaler the closure runs first, and once."""
    if optimization.scaler is None:
        return optimizer.step(closure, **options) if closure is not None else optimizer.step(**options)
    loss = closure() if closure is not None else None
    if optimization.window.taken:
        optimization.scaler.step(optimizer)
    return loss


def manual(run: Run, batch: Any, i: int, steps_now: bool) -> Any:  # noqa: ARG001  one signature for all three
    """Run the user's step, which does everything; the hooks get its output."""
    output, scaler = run.strategy.forward_backward(batch, i, nothing, True), run.optimization.scaler
    if scaler is not None:
        scaler.update()
    return output


def manual_backward(optimization: Optimization, loss: Any, *args: Any, **kwargs: Any) -> None:
    """Run `self.manual_backward(loss)`."""
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise unusable(loss, "manual_backward got")
    optimization.window.loss = loss.detach()
    if optimization.scaler is not None:
        loss = optimization.scaler.scale(loss)
    optimization.hooks.on_before_backward(loss)
    optimization.module_backward(loss, *args, **kwargs)
    optimization.hooks.on_after_backward()


def manual_step(optimization: Optimization, optimizer: Optimizer, closure: Closure = None, **options: Any) -> Any:
    """Run `self.optimizers().step()`."""
    scaler = optimization.scaler
    if scaler is None and closure is not None:

        def with_hook() -> Any:
            loss = closure()
            optimization.strategy.sync_gradients(optimizer)
            optimization.hooks.on_before_optimizer_step(optimizer)
            return loss

        return optimizer.step(with_hook, **options)
    loss = closure() if closure is not None else None
    optimization.strategy.sync_gradients(optimizer)
    if scaler is not None:
        scaler.unscale(optimizer)
    optimization.hooks.on_before_optimizer_step(optimizer)
    if scaler is None:
        return optimizer.step(**options)
    scaler.step(optimizer)
    return loss


def evaluate(run: Run, stage: Stage) -> list[dict[str, float]]:
    """Run a sanity check, validation or test. Return the metrics, one dictionary per loader."""
    with run.evaluating(stage) as data:
        calls = stage.calls(run.hooks, run.strategy, data.num_loaders)
        calls.start()
        calls.epoch_start()
        limits = [min(n, run.plan.sanity_batches) for n in data.num_batches] if stage is SANITY_CHECK else None
        table, several = run.results.table, data.num_loaders > 1
        for batch, i, loader in data.batches(limits):
            if run.signals.received is not None:
                run.leave_if_possible()
            table.batch, table.batch_size, table.loader = batch, None, loader
            where = (i, loader) if several else (i,)
            calls.batch_start(batch, *where)
            output = calls.step(batch, *where)
            calls.batch_end(output, batch, *where)
            run.logs.write_evaluation_step()
            run.stop.count_batch()
        table.loader = 0
        run.stop.end_batches()
        if run.signals.received is not None:
            run.leave_if_possible()
        run.results.end_epoch()
        calls.epoch_end()
        metrics = run.logs.write_evaluation()
        calls.end()
    return metrics


def predict(run: Run, keep: bool) -> list[list[Any]]:
    """Predict every batch. Return the outputs of `predict_step`, one list per loader; empty lists unless `keep`."""
    with run.evaluating(PREDICT) as data:
        calls = PREDICT.calls(run.hooks, run.strategy, data.num_loaders)
        outputs = run.evaluations.begin_outputs(data.num_loaders)
        calls.start()
        calls.epoch_start()
        table, several = run.results.table, data.num_loaders > 1
        for batch, i, loader in data.batches():
            if run.signals.received is not None:
                raise run.signals.received
            table.batch, table.batch_size, table.loader = batch, None, loader
            where = (i, loader) if several else (i,)
            calls.batch_start(batch, *where)
            output = calls.step(batch, *where)
            calls.batch_end(output, batch, *where)
            if keep:
                outputs[loader].append(output)
        calls.epoch_end()
        calls.end()
    return outputs
