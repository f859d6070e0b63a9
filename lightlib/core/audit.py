"""The audit: a report of the state that a checkpoint of the run contains, and of the state it misses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lightlib.callbacks.callback import Callback
from lightlib.core.module.overrides import overrides
from lightlib.core.run.user_state import Missing
from lightlib.data.generators import generators_in

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


@dataclass
class Audit:
    """The contents of a checkpoint, and the user state missing from it. ``print(audit)`` shows both.

    Attributes:
        captured: The contents of a checkpoint, by part.
        missing: State that is not saved, so that a resumed run differs.
    """

    captured: dict[str, str] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.missing

    def __str__(self) -> str:
        width = max(map(len, self.captured), default=0)
        lines = ["A checkpoint of this run contains:"]
        lines += [f"  {name.ljust(width)}  {description}" for name, description in self.captured.items()]
        if not self.missing:
            return "\n".join([*lines, "Nothing is known to be missing."])
        lines.append("It does not contain:")
        return "\n".join([*lines, *(f"  {item}" for item in self.missing)])


def audit(trainer: Trainer) -> Audit:
    """Return the contents of a checkpoint of this run, and the changed user state that it cannot contain."""
    run = trainer.run
    captured = _captured(trainer, trainer.lightning_module)  # as a checkpoint written now would hold it
    return Audit(captured, list(run.user_state.missing) if run is not None else [])


def _captured(trainer: Trainer, module: Module | None) -> dict[str, str]:
    run = trainer.run
    captured: dict[str, str] = {}
    if module is not None:
        state = module.state_dict()
        numbers = sum(value.numel() for value in state.values() if isinstance(value, torch.Tensor))
        captured["module"] = f"{len(state)} tensors of {type(module).__name__}, {numbers:,} numbers"
        if module.hparams:
            captured["hyperparameters"] = ", ".join(sorted(map(str, module.hparams)))
    if run is not None and run.optimization.optimizers:
        captured["optimizers"] = ", ".join(type(optimizer).__name__ for optimizer in run.optimization.optimizers)
        names = [type(config.scheduler).__name__ for config in run.optimization.schedules.configs]
        captured |= {"schedules": ", ".join(names)} if names else {}
        captured |= {"loss scaler": "scale and growth"} if run.optimization.scaler is not None else {}
    at = trainer.progress
    captured["position"] = f"epoch {at.epoch}, batch {at.epoch_batch} of it, step {at.step}"
    if run is not None and run.train_data is not None:
        captured["training data"] = _data(run.train_data.given)
    if run is not None and "val" in run.evaluations.loaded:
        captured["validation data"] = _data(run.evaluations.loaded["val"].given)
    if run is not None and run.results.train.slots:
        names = sorted({name for _, name, _ in run.results.train.slots})
        captured["logged this epoch"] = ", ".join(names)
    stateful = [
        callback
        for callback in trainer.callbacks
        if getattr(callback, "state_dict", dict)() or overrides(callback, Callback, "sharded_state")
    ]
    if stateful:
        captured["callbacks"] = ", ".join(type(callback).__name__ for callback in stateful)
    if trainer.datamodule is not None and trainer.datamodule.state_dict():
        captured["data module"] = type(trainer.datamodule).__name__
    if trainer.loggers:
        captured["loggers"] = ", ".join(type(logger).__name__ for logger in trainer.loggers)
    if run is not None and (changed := run.user_state.names()):
        captured["changed since training began"] = ", ".join(changed)
    device = " and the device" if trainer.strategy.root_device.type != "cpu" else ""
    captured["random numbers"] = f"Python, NumPy, torch{device}, of every process"
    return captured


def _data(loaders: list[Any]) -> str:
    texts = []
    for loader in loaders:
        sampler = getattr(loader, "sampler", None)
        how = "" if sampler is None else f" with {type(sampler).__name__}"
        count = len(generators_in({"loader": loader}))
        texts.append(f"{type(loader).__name__}{how}" + (f", {count} generator{'s' * (count > 1)}" if count else ""))
    return "; ".join(texts)
