"""StepCheck: warns about an epoch without an optimizer step, and ends a run that would never end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lightlib import report
from lightlib.callbacks.early_stopping import EarlyStopping
from lightlib.callbacks.timer import Timer
from lightlib.errors import MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

_MAY_STOP = (EarlyStopping, Timer)


class StepCheck:
    """Checks that each epoch of a run has an optimizer step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._began = 0, 0

    def begin_epoch(self) -> None:
        """Note the batch and the step at which the epoch begins; a resumed epoch counts as having had a step."""
        progress = self._run.progress
        self._began = progress.batch, -1 if progress.epoch_batch else progress.step

    def end_epoch(self) -> None:
        """Warn after a first epoch without an optimizer step, which is probably a forgotten `return`."""
        self._refuse_endless_run()
        run, progress = self._run, self._run.progress
        if progress.epoch == 1 and progress.step == 0 and progress.batch and run.optimization.optimizers:
            if run.optimization.window.has_no_loss and run.module.automatic_optimization:
                why = "training_step returned None for every batch, which skips it."
                fix = "write `return loss` at its end."
            elif run.module.automatic_optimization:
                why = "optimizer_step skipped every step, or all gradients overflowed."
                fix = "call optimizer.step(closure=optimizer_closure); against overflows use precision='bf16-mixed'."
            else:
                why = "training_step never called self.optimizers().step()."
                fix = "call it after self.manual_backward(loss)."
            report.warn(
                f"No optimizer stepped in epoch 0 ({progress.batch} batches): {type(run.module).__name__}.{why}\n"
                f"  Expected: an optimizer step in every epoch.\n  Fix: {fix}",
                report.PossibleUserWarning,
            )

    def _refuse_endless_run(self) -> None:
        run, plan = self._run, self._run.plan
        batch, step = self._began
        batches = run.progress.batch - batch
        if not batches or run.progress.step > step or plan.max_epochs < math.inf or plan.max_steps == math.inf:
            return
        may_stop = run.stop.is_requested or any(isinstance(callback, _MAY_STOP) for callback in run.callbacks)
        if may_stop or not run.module.automatic_optimization:
            return
        if not run.optimization.optimizers:
            why, fix = "configure_optimizers returned no optimizer", "return an optimizer"
        elif run.optimization.window.has_no_loss:
            why, fix = "training_step returned no loss for any batch, which skips it", "return the loss"
        else:
            return
        raise MisconfigurationException(
            f"No optimizer stepped in epoch {run.progress.epoch - 1} ({batches} batches): "
            f"{type(run.module).__name__}.{why}. Only max_steps={plan.max_steps:g} ends this run, so it would never "
            "end.",
            expected="an optimizer step in every epoch, or another kind of limit.",
            fix=f"{fix}, or Trainer(max_epochs=…).",
        )
