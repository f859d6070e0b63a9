"""The checkpoint that a ModelCheckpoint of the run counts as its best, and reading it on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightlib.callbacks.checkpoint.model_checkpoint import ModelCheckpoint
from lightlib.checkpoint import formats
from lightlib.errors import CheckpointError, MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


def saver_for(trainer: Trainer, owner: str, monitor: str | None, compares: bool) -> ModelCheckpoint:
    """Return the ModelCheckpoint with the best file that counts.

    Args:
        trainer: The trainer.
        owner: The class that needs it, for messages.
        monitor: Its metric. None: the first one counts.
        compares: Whether it has to compare checkpoints by a metric.

    Raises:
        MisconfigurationException: There is no such ModelCheckpoint.
    """
    savers = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    fitting = [
        saver for saver in savers if monitor in (None, saver.monitor) and not (compares and saver.monitor is None)
    ]
    if fitting:
        return fitting[0]
    shown = ", ".join(f"ModelCheckpoint(monitor={saver.monitor!r})" for saver in savers)
    argument = f"monitor={monitor!r}" if monitor is not None else 'monitor="val_loss"' if compares else ""
    raise MisconfigurationException(
        f"{owner} finds no ModelCheckpoint{f' with {argument}' if argument else ''} among the callbacks"
        f"{f', only {shown}' if shown else ''}.",
        expected=f"a ModelCheckpoint{' that compares checkpoints by a metric' if compares else ''}.",
        fix=f"callbacks=[ModelCheckpoint({argument}), {owner}(…)]",
    )


def read_on_all_ranks(trainer: Trainer, path: str) -> dict[str, Any]:
    """Return the content of a checkpoint; all processes call this, and all raise if one cannot read it.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    content: dict[str, Any] | None = None
    error: CheckpointError | None = None
    store = trainer.strategy.extension.store
    try:
        content = formats.load(path, "cpu") if store is None else store.load(path, None)
    except CheckpointError as raised:
        error = raised.with_traceback(None)
    errors = trainer.strategy.collectives.all_gather_object(error)
    first_error = next((failure for failure in errors if failure is not None), None)
    if first_error is not None or content is None:
        raise error or first_error or CheckpointError(f"{path!r} is empty.", expected="a checkpoint.")
    return content
