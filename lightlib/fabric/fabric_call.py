"""Arguments: checks of the call of Fabric, and the options of `lightlib fabric run`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from lightlib.core.setup.trainer_call import checked_call
from lightlib.errors import MisconfigurationException, owned_by
from lightlib.fabric.refusals import OWNER

LAUNCHED_BY_COMMAND = "LIGHTLIB_OWNER_RUN"
OPTIONS = ("accelerator", "strategy", "devices", "num_nodes", "precision")
Init = TypeVar("Init", bound=Callable[..., None])


def checked_arguments(init: Init) -> Init:
    """Decorate ``Fabric.__init__``: defaults from the environment, and an explanation for unknown arguments."""
    checked_as_trainers = checked_call(init, prefixes=("LIGHTLIB_",))

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        with owned_by(OWNER):
            _refuse_conflict(kwargs)
            checked_as_trainers(self, *args, **kwargs)

    return cast("Init", checked)


def _refuse_conflict(arguments: Mapping[str, Any]) -> None:
    """Refuse an argument that `lightlib fabric run` has set to another value."""
    if os.environ.get(LAUNCHED_BY_COMMAND) != "1":
        return
    for name in OPTIONS:
        value = os.environ.get(f"LIGHTLIB_{name.upper()}")
        if name in arguments and value is not None and str(arguments[name]) not in (value, "auto"):
            option = f"--{name.replace('_', '-')}"
            raise MisconfigurationException(
                f"The script has Fabric({name}={arguments[name]!r}), and `lightlib fabric run` got {option}={value}.",
                expected="one of the two.",
                fix=f"leave {name} out in the script, or {option} on the command line.",
            )
