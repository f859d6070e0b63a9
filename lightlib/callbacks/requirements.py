"""Requirements of callbacks on a run: the strategy, and the callbacks next to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib.callbacks.callback import Callback
from lightlib.errors import MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


def need_receiver(callback: Callback, trainer: Trainer) -> None:
    """Refuse a run in which no logger, callback or module receives numbers.

    Raises:
        MisconfigurationException: There is none, and it is not a `fast_dev_run`, which has no loggers.
    """
    if not trainer.loggers and not trainer.fast_dev_run and not trainer.hooks.defines("on_log"):
        name = type(callback).__name__
        raise MisconfigurationException(
            f"{name} has nowhere to log to: the Trainer has no logger.",
            expected="a logger, or a callback such as History that defines `on_log`.",
            fix=f"Trainer(logger=True), callbacks=[History(), {name}(…)], or leave {name} out.",
        )


def need_stepped_parameters(callback: Callback, trainer: Trainer) -> None:
    """Refuse a strategy such as DeepSpeed, which trains copies of the parameters.

    Raises:
        MisconfigurationException: It is such a strategy.
    """
    if not trainer.strategy.steps_parameters:
        raise MisconfigurationException(
            f"{type(callback).__name__} got a {type(trainer.strategy).__name__}.",
            expected="a strategy under which the module's parameters are those that are trained.",
            fix='Trainer(strategy="fsdp")',
        )


def need_layers(callback: Callback, trainer: Trainer) -> None:
    """Refuse a strategy that shards parameters or divides layers.

    Raises:
        MisconfigurationException: It is such a strategy.
    """
    if not trainer.strategy.keeps_layers:
        raise MisconfigurationException(
            f"{type(callback).__name__} got a {type(trainer.strategy).__name__}, which shards or divides layers.",
            expected="a strategy under which each process has all parameters of each layer.",
            fix='Trainer(strategy="ddp"), one device, or leave the callback out.',
        )


def need_one_average(callback: Callback, trainer: Trainer) -> None:
    """Refuse a second callback that puts other weights into checkpoints.

    Raises:
        MisconfigurationException: There is one.
    """
    theirs = [other for other in trainer.callbacks if other is not callback]
    others = [other for other in theirs if type(other).checkpoint_weights is not Callback.checkpoint_weights]
    if others:
        raise MisconfigurationException(
            f"The Trainer has two callbacks that put other weights into checkpoints: {others[0]!r} and {callback!r}.",
            expected="one: a checkpoint holds one average.",
            fix="leave one of them out.",
        )
