"""The audit: what a checkpoint of a run would hold, and what the user holds that it would not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lightlib.core.run.user_state import Missing
from lightlib.data.generators import generators_in

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

__all__ = ["Audit", "Missing", "audit"]


@dataclass
class Audit:
    """What is in a checkpoint, and what is not. ``print(audit)`` shows both.

    Attributes:
        captured: What a checkpoint holds, by part.
        missing: What it does not hold and a resumed run would have otherwise.
    """

    captured: dict[str, str] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing."""
        return not self.missing

    def __str__(self) -> str:
        width = max(map(len, self.captured), default=0)
        lines = ["A checkpoint of this run holds:"]
        lines += [f"  {name.ljust(width)}  {what}" for name, what in self.captured.items()]
        if not self.missing:
            return "\n".join([*lines, "Nothing is known that it would not hold."])
        lines.append("It does not hold:")
        return "\n".join([*lines, *(f"  {one}" for one in self.missing)])


def audit(trainer: Trainer, module: Module | None = None) -> Audit:
    """Return what a checkpoint of this run holds, and what has changed in the user's objects that it cannot hold.

    Args:
        trainer: Whose run it is. Before a fit nothing has changed yet.
        module: Looked at in place of the run's, when there has been none.
    """
    run = trainer.run
    missing = run.user_state.look() if run is not None else []
    return Audit(_captured(trainer, trainer.lightning_module if module is None else module), missing)


def _captured(trainer: Trainer, module: Module | None) -> dict[str, str]:
    run = trainer.run
    found: dict[str, str] = {}
    if module is not None:
        state = module.state_dict()
        numbers = sum(one.numel() for one in state.values() if isinstance(one, torch.Tensor))
        found["module"] = f"{len(state)} tensors of {type(module).__name__}, {numbers:,} numbers"
        if module.hparams:
            found["hyperparameters"] = ", ".join(sorted(map(str, module.hparams)))
    if run is not None and run.optimization.optimizers:
        found["optimizers"] = ", ".join(type(one).__name__ for one in run.optimization.optimizers)
        names = [type(one.scheduler).__name__ for one in run.optimization.schedules.configs]
        found |= {"schedules": ", ".join(names)} if names else {}
        found |= {"loss scaler": "scale and growth"} if run.optimization.scaler is not None else {}
    at = trainer.progress
    found["position"] = f"epoch {at.epoch}, batch {at.epoch_batch} of it, step {at.step}"
    if run is not None and run.train_data is not None:
        found["training data"] = _data(run.train_data.given)
    if run is not None and "val" in run.evaluations.loaded:
        found["validation data"] = _data(run.evaluations.loaded["val"].given)
    if run is not None and run.results.train.slots:
        names = sorted({name for _, name, _ in run.results.train.slots})
        found["logged this epoch"] = ", ".join(names)
    states = [one for one in trainer.callbacks if getattr(one, "state_dict", dict)()]
    if states:
        found["callbacks"] = ", ".join(type(one).__name__ for one in states)
    if trainer.datamodule is not None and trainer.datamodule.state_dict():
        found["data module"] = type(trainer.datamodule).__name__
    if trainer.loggers:
        found["loggers"] = ", ".join(type(one).__name__ for one in trainer.loggers)
    if run is not None and (changed := run.user_state.names()):
        found["changed since training began"] = ", ".join(changed)
    found["random numbers"] = "Python, NumPy, torch, " + (
        "and of its device, of every process" if trainer.strategy.root_device.type != "cpu" else "of every process"
    )
    return found


def _data(given: list[Any]) -> str:
    texts = []
    for loader in given:
        sampler = getattr(loader, "sampler", None)
        how = "" if sampler is None else f" with {type(sampler).__name__}"
        own = len(generators_in({"loader": loader}))
        texts.append(f"{type(loader).__name__}{how}" + (f", {own} generators of its own" if own else ""))
    return "; ".join(texts)
