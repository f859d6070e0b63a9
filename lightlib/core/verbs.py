"""The beginning of `fit`, `validate`, `test` and `predict`: spawned processes, unknown arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lightlib.core import spawned
from lightlib.core.setup.trainer_call import refuse_unknown

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


def in_spawned_processes(
    trainer: Trainer, method: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[Any] | None:
    """Run a call in the processes that the strategy spawns, and return its result in a tuple; None if it spawns none.

    Args:
        trainer: The Trainer.
        method: Its method, as the class has it.
        arguments: The local variables of the method at its beginning.

    Raises:
        ArgumentTypeError: The call has an unknown argument.
    """
    owner = next(cls for cls in type(trainer).__mro__ if vars(cls).get(method.__name__) is method)
    refuse_unknown(arguments["unknown"], method, owner)
    return (spawned.call(trainer, method.__name__, arguments),) if spawned.spawns_processes(trainer) else None
