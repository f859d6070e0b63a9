"""Runs Lightning's projects: after `install()`, `import lightning` gives lightlib."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightlib import conventions, registry, report
from lightlib.errors import MisconfigurationException
from lightlib.version import __version__
from lightlib_lightning import loggers
from lightlib_lightning.finder import ROOTS, CompatModule, Finder
from lightlib_lightning.order import LIGHTNING

__all__ = [
    "ANNOUNCED",
    "LOCAL_VERSION",
    "SHIMS",
    "Distribution",
    "announce",
    "distributions",
    "install",
    "is_installed",
    "replace",
    "uninstall",
]

LOCAL_VERSION = "+lightlib"  # ends the versions of the distributions in packaging/lightlib-as-lightning
ANNOUNCED = "LIGHTLIB_ANNOUNCED"  # set for a process whose starter has called `announce`

# A folder for `sys.path`: the first import of Lightning from there calls `replace`.
SHIMS = Path(__file__).parent / "shims"


def is_installed() -> bool:
    """Whether this process imports lightlib under Lightning's names."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)


def install() -> None:
    """Make this process import lightlib under Lightning's names; a second call changes nothing.

    Raises:
        MisconfigurationException: A real Lightning has been imported already.

    Example:
        >>> install()  # doctest: +SKIP
        >>> import lightning as L  # doctest: +SKIP
        >>> L.Trainer.__module__  # doctest: +SKIP
        'lightlib.core.trainer'
    """
    if is_installed():
        return
    imported = [root for root in ROOTS if root in sys.modules]
    if imported:
        raise MisconfigurationException(
            f"lightlib.compat.install() came too late: {imported[0]} has been imported from"
            f" {getattr(sys.modules[imported[0]], '__file__', None)}{_importer(imported[0])}.",
            expected="the call before anything imports Lightning.",
            fix="call it first in the program, or start it by `lightlib compat run`.",
        )
    if any(not distribution.ours for distribution in distributions()):
        announce()
    _switch()


def _switch() -> None:
    sys.meta_path.insert(0, Finder())
    conventions.use(LIGHTNING)
    conventions.serve_internals(_internal, _set_internal, _inspect)
    registry.substitute_by(_of_lightnings_kind)
    report.share_rank()
    loggers.connect()


def uninstall() -> None:
    """Undo :func:`install`: lightlib's own conventions apply again, and later imports find an installed Lightning.

    Example:
        >>> install()  # doctest: +SKIP
        >>> uninstall()
        >>> is_installed()
        False
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    for name, module in list(sys.modules.items()):
        if isinstance(module, CompatModule) and name.partition(".")[0] in ROOTS:
            del sys.modules[name]
    conventions.use(conventions.LIGHTLIB)
    conventions.serve_internals(None)
    loggers.disconnect()


def announce() -> None:
    """Print which package serves as Lightning: on rank zero, in the process that starts a program."""
    if report.rank_zero_only.rank != 0 or multiprocessing.current_process().name != "MainProcess":
        return
    real = [str(distribution) for distribution in distributions() if not distribution.ours]
    unused = f"; the installed {' and '.join(real)} {'are' if len(real) > 1 else 'is'} not used" if real else ""
    sys.stderr.write(f"lightlib {__version__} serves as Lightning 2.6{unused}\n")
    sys.stderr.flush()


@dataclass(frozen=True)
class Distribution:
    """An installed distribution with a name of Lightning's.

    Attributes:
        ours: Whether it is of packaging/lightlib-as-lightning, and not a real Lightning.
    """

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def ours(self) -> bool:
        return self.version.endswith(LOCAL_VERSION)


def distributions() -> list[Distribution]:
    """Return the installed distributions that are, or stand for, a Lightning."""
    installed_distributions = []
    for name in ("lightning", "pytorch-lightning"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed_distributions.append(Distribution(name, importlib.metadata.version(name)))
    return installed_distributions


def replace(root: str) -> None:
    """Put lightlib's module in the place of one in :data:`SHIMS`, which calls this while it is imported.

    Args:
        root: ``"lightning"``, ``"pytorch_lightning"`` or ``"lightning_fabric"``.
    """
    del sys.modules[root]
    if not is_installed():
        if os.environ.pop(ANNOUNCED, None) is None:
            announce()
        _switch()
    importlib.import_module(root)


def _internal(owner: Any, name: str) -> Any:
    """Return an internal of Lightning; its module is imported with the first one."""
    from lightlib_lightning import internals  # optional: nothing, but few programs need it

    return internals.get(owner, name)


def _set_internal(owner: Any, name: str, value: Any) -> None:
    from lightlib_lightning import internals  # optional: as above

    internals.set_by_user(owner, name, value)


def _inspect(callback: Any) -> None:
    from lightlib_lightning.internals.overridden import warn_of_overridden  # optional: as above

    warn_of_overridden(callback)


def _of_lightnings_kind(group: str, name: str) -> Callable[..., Any] | None:
    """Return the factory of the strategy or precision of a name, with Lightning's methods; None without one."""
    modules = {"strategies": "strategies", "precision": "layer_precision"}
    if group not in modules or not is_installed():
        return None
    named = importlib.import_module(f"lightlib_lightning.plugins.{modules[group]}").named
    factory: Callable[..., Any] | None = named(name)
    return factory


def _importer(root: str) -> str:
    """Return which loaded module holds Lightning's, in words; empty if none does."""
    real = sys.modules[root]
    holders = [
        name
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in ROOTS and any(value is real for value in list(vars(module).values()))
    ]
    return f" by {holders[0]}" if holders else ""
