"""Reporter: sends the metrics and checkpoints of a trial to its worker."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightlib.callbacks.callback import Callback
from lightlib.callbacks.monitored import is_old, new_metrics
from lightlib.errors import MisconfigurationException
from lightlib.experiment.messages import Messages

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class Reporter(Callback):
    """Sends the metrics of each validation, those that are logged in training, and each complete checkpoint.

    Only rank 0 sends. Sending waits for nothing.

    Args:
        messages: To the worker; None on the other ranks.
        needed: The metrics of the searcher, which each validation must log.
        reported: Whether an earlier attempt has reported it.
        store: The folder or URL of its checkpoints, unless they are in the folder of the attempt.

    Raises:
        MisconfigurationException: On rank 0: the fit does not validate, or a validation does not log all of them.
    """

    after_module = True

    def __init__(
        self, messages: Messages | None, needed: Sequence[str], reported: bool = False, store: str | None = None
    ) -> None:
        self._messages, self._needed, self._reported, self._store = messages, needed, reported, store

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        if not self._reported and trainer.plan is not None and trainer.plan.validate_every is None:
            data = "validation data, a validation_step, and a limit_val_batches above 0."
            self._refuse("The fit does not validate", [], fix=data)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.sanity_checking:
            return
        metrics = _plain(new_metrics(trainer))
        missing = [name for name in self._needed if name not in metrics]
        if any(is_old(trainer, name) for name in missing):
            return  # this validation has left its loader out
        if missing:
            self._refuse("The validation does not log it", list(metrics), metric=missing[0])
        self._reported = True
        self._send("validated", trainer, metrics=metrics)

    def on_log(self, trainer: Trainer, pl_module: Module, metrics: Mapping[str, float]) -> None:
        self._send("logged", trainer, metrics=_plain(metrics))

    def on_checkpoint_written(self, trainer: Trainer, pl_module: Module, path: str) -> None:
        if self._messages is not None:
            here, checkpoint = self._messages.folder, Path(path)  # users may move the folder
            if self._store is not None and path.startswith(f"{self._store}/"):
                self._send("checkpoint", trainer, path=path[len(self._store) + 1 :], stored=True)
                return
            self._send(
                "checkpoint",
                trainer,
                path=str(checkpoint.relative_to(here) if checkpoint.is_relative_to(here) else path),
            )

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        if not self._reported:
            self._refuse("No validation has run", list(_plain(trainer.callback_metrics)))

    def _send(self, kind: str, trainer: Trainer, **values: Any) -> None:
        if self._messages is not None:
            position = trainer.progress
            self._messages.send(kind, step=position.batch, epoch=position.epoch, **values)

    def _refuse(self, why: str, logged: list[str], fix: str = "", metric: str = "") -> None:
        if self._messages is None:  # rank 0 ends the run; only it needs the metric
            return
        names, metric = ", ".join(sorted(logged)) or "nothing", metric or self._needed[0]
        error = {
            "what": f"The searcher's metric is {metric!r}. {why}; logged were: {names}.",
            "expected": "a validation that logs the metric of the searcher.",
            "fix": fix or f"self.log({metric!r}, …) in validation_step, or another searcher.metric.",
        }
        self._messages.send("unlogged", error=error)
        raise MisconfigurationException(**error)


def _plain(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are single numbers."""
    plain_numbers = {}
    for name, value in metrics.items():
        number = value.item() if hasattr(value, "item") and getattr(value, "numel", lambda: 1)() == 1 else value
        if isinstance(number, numbers.Real):
            plain_numbers[str(name)] = float(number)
    return plain_numbers
