"""LearningRateFinder: searches for a learning rate before training, on copies, and sets it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.errors import MisconfigurationException, check_int, check_number, check_word
from lightlib.tuner.attribute import find_name, set_rate, set_value
from lightlib.tuner.lr_curve import LRFinder, Recorder

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

NAMES = ("lr", "learning_rate")
_MODES = ("linear", "exponential")


class LearningRateFinder(Callback):
    """Trains a copy of the module with growing learning rates and sets the one at which the loss falls fastest.

    The search runs in `setup`, before optimizers are made, so groups and schedules begin with the found value. It uses
    copies of the module, the data module and the loaders: the run that follows is the one without a search, with
    another learning rate. A checkpoint holds the result; a resumed run does not search again. To search at other
    moments override `on_fit_start`, which turns off the search in `setup`, and call `lr_find`.

    Args:
        min_lr: The first learning rate. Default 1e-8.
        max_lr: The last one. Default 1.
        num_training_steps: Optimizer steps of the search. Default 100.
        mode: ``"exponential"`` (default) or ``"linear"``.
        early_stop_threshold: Stop when the smoothed loss exceeds its best value by this factor; None: never.
        update_attr: Set the found value. Default True.
        attr_name: The attribute or hyperparameter that holds the learning rate. Default: ``lr`` or ``learning_rate``.

    Attributes:
        optimal_lr: The curve, with `results`, `suggestion()` and `plot()`; None before the search.

    Raises:
        MisconfigurationException: A wrong mode, or numbers out of range; when a run begins: the module has no such
            attribute, several optimizers, or manual optimization.

    Example:
        >>> LearningRateFinder(min_lr=1e-5, num_training_steps=50).optimal_lr is None
        True
    """

    makes_probes = True

    def __init__(
        self,
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training_steps: int = 100,
        mode: Literal["exponential", "linear"] = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self._mode = mode_of(name, mode, _MODES)
        check_int(name, "num_training_steps", num_training_steps, 1)
        for argument, value in (("min_lr", min_lr), ("max_lr", max_lr)):
            check_number(name, argument, value, above=0, below=math.inf)
        if not min_lr < max_lr:
            raise MisconfigurationException(
                f"{name}(min_lr={min_lr}, max_lr={max_lr}).",
                expected="min_lr < max_lr.",
                fix=f"{name}(min_lr={max_lr}, max_lr={min_lr})" if max_lr < min_lr else f"{name}(min_lr=1e-8)",
            )
        if early_stop_threshold is not None:
            check_number(name, "early_stop_threshold", early_stop_threshold, above=0, below=math.inf)
        self._min_lr, self._max_lr, self._num_training_steps = min_lr, max_lr, num_training_steps
        self._early_stop_threshold, self._update_attr, self._attr_name = early_stop_threshold, update_attr, attr_name
        self.optimal_lr: LRFinder | None = None
        self._restored = False

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage != "fit":
            return
        restored, self._restored = self._restored, False
        if restored:
            self._apply(trainer, pl_module)
        elif type(self).on_fit_start is LearningRateFinder.on_fit_start:
            self.lr_find(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Do nothing: the search ran in `setup`."""

    def lr_find(self, trainer: Trainer, pl_module: Module, call: Any = None) -> None:
        """Search now, and set the attribute and the learning rate of optimizers that exist.

        Args:
            trainer: The Trainer.
            pl_module: The module.
            call: The objects to search with. Default: those of the present call.
        """
        if trainer.fast_dev_run:
            report.warn("fast_dev_run is on: the search for a learning rate is left out.")
            return
        if self._update_attr:
            self._name(pl_module)
        curve = LRFinder(self._mode, self._min_lr, self._max_lr, self._num_training_steps)
        recorder = Recorder(curve, self._early_stop_threshold)
        trainer.run_probe(recorder, self._num_training_steps, without_schedules, call)
        self.optimal_lr = curve
        self._apply(trainer, pl_module)

    def _apply(self, trainer: Trainer, pl_module: Module) -> None:
        lr = self.optimal_lr.suggestion() if self.optimal_lr is not None and self._update_attr else None
        if lr is None:
            return
        name = self._name(pl_module)
        set_value(name, lr, pl_module, None)
        if trainer.run is not None:
            for optimizer in trainer.optimizers:
                for group in optimizer.param_groups:
                    set_rate(group, lr)
        report.info(f"The search set {name}={lr:g}.")

    def _name(self, module: Any) -> str:
        names = (self._attr_name,) if self._attr_name else NAMES
        return find_name(names, module, None, "The search for a learning rate", "attr_name")

    def state_dict(self) -> dict[str, Any]:
        curve = self.optimal_lr
        if curve is None:
            return {}
        span = {"mode": curve.mode, "lr_min": curve.lr_min, "lr_max": curve.lr_max, "num_training": curve.num_training}
        return {**span, "lr": list(curve.results["lr"]), "loss": list(curve.results["loss"])}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not state_dict:
            return
        span = {name: state_dict[name] for name in ("mode", "lr_min", "lr_max", "num_training")}
        self.optimal_lr = LRFinder(**span, results={name: list(state_dict[name]) for name in ("lr", "loss")})

    def load_search_result(self, state_dict: dict[str, Any]) -> None:
        """Take the result from a checkpoint before `setup`, which then does not search."""
        self.load_state_dict(state_dict)
        self._restored = bool(state_dict)


def without_schedules(module: Any, datamodule: Any) -> None:  # noqa: ARG001  one signature for edits of a probe
    """Leave out the callbacks of a module that a search trains, and the schedules unless it steps them itself."""
    vars(module).update(configure_callbacks=list)
    if not module.automatic_optimization:
        return
    configure = module.configure_optimizers

    def only_optimizers() -> Any:
        configured = configure()
        if isinstance(configured, tuple) and len(configured) == 2 and isinstance(configured[0], (list, tuple)):
            return configured[0]
        if isinstance(configured, dict) and "optimizer" in configured:
            return configured["optimizer"]
        if isinstance(configured, (list, tuple)):
            return [entry["optimizer"] if isinstance(entry, dict) else entry for entry in configured]
        return configured

    vars(module).update(configure_optimizers=only_optimizers)


def mode_of(owner: str, mode: Any, modes: tuple[str, ...]) -> str:
    """Return the mode in lower case if it is one of `modes`."""
    return check_word(owner, "mode", mode.lower() if isinstance(mode, str) else mode, modes)
