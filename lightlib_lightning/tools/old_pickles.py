"""Names that pickles of Lightning before 2.0 refer to, for programs that read such files themselves."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from types import ModuleType
from typing import Any
from unittest import mock

from lightlib.errors import MisconfigurationException

__all__ = ["pl_legacy_patch"]

_ROOTS = ("lightning.pytorch", "pytorch_lightning")


class _FaultTolerantMode(Enum):
    """A setting of Lightning 1.5 to 1.9."""

    DISABLED = "disabled"
    AUTOMATIC = "automatic"
    MANUAL = "manual"


def _gpus_arg_default(x: Any) -> Any:
    """Return the argument: the default of ``--gpus`` in Lightning before 1.2.8."""
    return x


@contextmanager
def pl_legacy_patch() -> Iterator[None]:
    """Provide, within this context, the names that were removed from Lightning and are in old pickles.

    `fit(ckpt_path=…)` and `load_from_checkpoint` read old files without it.

    Raises:
        MisconfigurationException: Compat is not switched on, so that pickles would not find Lightning's other names.

    Example:
        >>> with pl_legacy_patch():  # doctest: +SKIP
        ...     content = torch.load("of_1_2.ckpt", weights_only=False)
    """
    try:
        modules = {name: importlib.import_module(f"{_ROOTS[0]}.utilities.{name}") for name in ("argparse", "enums")}
    except ModuleNotFoundError as error:
        raise MisconfigurationException(
            "pl_legacy_patch was called without compat, and Lightning is not installed.",
            expected="Lightning's names, which its pickles refer to.",
            fix="call lightlib.compat.install() first, or read the file by load_from_checkpoint.",
        ) from error
    old = ModuleType(f"{_ROOTS[0]}.utilities.argparse_utils")
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(vars(old), _gpus_arg_default=_gpus_arg_default))
        stack.enter_context(mock.patch.dict(vars(modules["argparse"]), _gpus_arg_default=_gpus_arg_default))
        stack.enter_context(mock.patch.dict(vars(modules["enums"]), _FaultTolerantMode=_FaultTolerantMode))
        stack.enter_context(mock.patch.dict(sys.modules, {f"{root}.utilities.argparse_utils": old for root in _ROOTS}))
        yield
