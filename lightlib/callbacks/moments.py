"""Questions of a callback in its hooks: every n epochs, the end of an epoch, the last batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib.errors import check_int

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


def every_n_epochs(trainer: Trainer, n: int, start: int = 0) -> bool:
    """Whether the running epoch, or the one that has just ended, is a multiple of `n`, counted from `start`.

    For the hooks of an epoch, its validation, and `on_fit_epoch_end`; epochs are counted from one.

    Args:
        trainer: The first argument of the hook.
        n: The interval. 0: never.
        start: The number of epochs to leave out first. Default: 0.

    Raises:
        ArgumentTypeError: `n` or `start` is no int.
        MisconfigurationException: `n` or `start` is negative.

    Example:
        >>> import lightlib
        >>> from lightlib.callbacks import LambdaCallback, every_n_epochs
        >>> def note(trainer, pl_module):
        ...     if every_n_epochs(trainer, 2):
        ...         print("after epoch", trainer.current_epoch)
        >>> callback = LambdaCallback(on_train_epoch_end=note)
        >>> options = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        >>> trainer = lightlib.Trainer(max_epochs=4, callbacks=callback, logger=False, **options)
        >>> trainer.fit(lightlib.testing.BoringModule())
        after epoch 1
        after epoch 3
    """
    return _every("every_n_epochs", trainer.progress.epochs_begun, n, start)


def every_n_train_iters(trainer: Trainer, n: int, start: int = 0) -> bool:
    """Whether the training batches of the run, up to now, are a multiple of `n`, counted from `start`.

    For `on_train_batch_end` and later hooks; before, the running batch is not counted.

    Args:
        trainer: The first argument of the hook.
        n: The interval. 0: never.
        start: The number of batches to leave out first. Default: 0.

    Raises:
        ArgumentTypeError: `n` or `start` is no int.
        MisconfigurationException: `n` or `start` is negative.

    Example:
        >>> from types import SimpleNamespace
        >>> trainer = SimpleNamespace(progress=SimpleNamespace(batch=5))  # in a hook, the first argument
        >>> every_n_train_iters(trainer, 5), every_n_train_iters(trainer, 5, start=1)
        (True, False)
    """
    return _every("every_n_train_iters", trainer.progress.batch, n, start)


def every_n_inner_iters(batch_idx: int, n: int) -> bool:
    """Whether the batch with this index is a multiple of `n` within its epoch, training or evaluation.

    Args:
        batch_idx: The argument of the hook.
        n: The interval. 0: never.

    Raises:
        ArgumentTypeError: `n` is no int.
        MisconfigurationException: `n` is negative.

    Example:
        >>> [index for index in range(6) if every_n_inner_iters(index, 3)]
        [2, 5]
    """
    return _every("every_n_inner_iters", batch_idx + 1, n, 0)


def end_of_epoch(trainer: Trainer) -> bool:
    """Whether the running training batch is the last one of its epoch.

    Args:
        trainer: The first argument of the hook.

    Example:
        >>> import lightlib
        >>> end_of_epoch(lightlib.Trainer())  # no run
        False
    """
    return trainer.is_last_batch


def is_last_train_epoch(trainer: Trainer) -> bool:
    """Whether the running epoch is the last one, unless something stops the run early.

    False if that is unknown: the run ends after a number of steps, and its loader has no length.

    Args:
        trainer: The first argument of the hook.

    Example:
        >>> import lightlib
        >>> is_last_train_epoch(lightlib.Trainer())  # no run
        False
    """
    return trainer.plan is not None and trainer.plan.is_last_epoch(trainer.progress)


def is_last_train_iter(trainer: Trainer) -> bool:
    """Whether the run ends after this batch, for `on_train_batch_end` and later hooks.

    Args:
        trainer: The first argument of the hook.

    Example:
        >>> import lightlib
        >>> is_last_train_iter(lightlib.Trainer())  # no run
        False
    """
    return trainer.plan is not None and trainer.plan.ends(trainer.progress, trainer.is_last_batch)


def _every(owner: str, number: int, n: int, start: int) -> bool:
    check_int(owner, "n", n, 0)
    check_int(owner, "start", start, 0)
    return n > 0 and number > start and (number - start) % n == 0
