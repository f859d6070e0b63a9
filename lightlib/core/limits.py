"""TrainerLimits: the Trainer's limits and intervals as attributes that may be set between two calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightlib.core.progress.progress import Progress
from lightlib.core.session import Session
from lightlib.core.setup.settings import Settings

__all__ = ["TrainerLimits"]

_INTERNALS = {  # of Lightning's Trainer, and their public counterparts here
    "fit_loop": "`trainer.progress`, `trainer.plan` and `trainer.max_epochs`",
    "validate_loop": "`trainer.num_val_batches`",
    "test_loop": "`trainer.num_test_batches`",
    "predict_loop": "`trainer.num_predict_batches`",
    "lightning_optimizers": "`module.optimizers()`",
    "tuner": "a tuner callback",
    "lr_schedulers": "`trainer.lr_scheduler_configs`",
    "_data_connector": "`trainer.train_dataloader` and its siblings",
    "_logger_connector": "`trainer.callback_metrics`",
    "_checkpoint_connector": "`trainer.save_checkpoint`",
    "_accelerator_connector": "`trainer.strategy` and `trainer.accelerator`",
}


class _Limits:
    """The settings that are attributes of the Trainer, under the names of its arguments."""

    accumulate_grad_batches: int
    barebones: bool
    check_val_every_n_epoch: int | None
    fast_dev_run: int
    global_batch_size: int | None
    gradient_clip_algorithm: str | None
    gradient_clip_val: float | None
    limit_predict_batches: int | float
    limit_test_batches: int | float
    limit_train_batches: int | float
    limit_val_batches: int | float
    log_every_n_steps: int
    max_epochs: int | None
    max_steps: int
    max_time: float | None
    min_epochs: int | None
    min_steps: int | None
    num_sanity_val_steps: float
    overfit_batches: int | float
    reload_dataloaders_every_n_epochs: int
    val_check_interval: int | float


_SETTINGS = frozenset(_Limits.__annotations__)


class TrainerLimits(_Limits):
    """Reads the limits from the settings. Setting one checks it, and changes the plan of a fit that runs."""

    settings: Settings
    progress: Progress
    _session: Session

    if not TYPE_CHECKING:  # type checkers must report unknown names

        def __getattr__(self, name: str) -> Any:
            if name in _SETTINGS and "settings" in self.__dict__:
                return getattr(self.settings, name)
            hint = f" `{name}` is internal to Lightning; read {_INTERNALS[name]}." if name in _INTERNALS else ""
            raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}.{hint}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SETTINGS:
            self.settings.change(name, value)
            session = self.__dict__.get("_session")
            run = None if session is None else session.run
            if run is not None and run.stage == "train" and run.train_data is not None:
                plan = run.replan(run.train_data.num_batches)
                if self.progress.epoch_batch:  # a new accumulation begins with the next epoch
                    plan = replace(plan, accumulate=run.plan.accumulate)
                run.use_plan(plan)
        else:
            object.__setattr__(self, name, value)
