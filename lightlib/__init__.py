"""lightlib: train PyTorch models. The public names; Lightning's names are aliases."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lightlib.version import __version__

if TYPE_CHECKING:
    from lightlib.callbacks.callback import Callback
    from lightlib.core.combined import CombinedLoader
    from lightlib.core.datamodule import DataModule
    from lightlib.core.datamodule import DataModule as LightningDataModule
    from lightlib.core.module import Module
    from lightlib.core.module import Module as LightningModule
    from lightlib.core.seed import isolate_rng, seed_everything
    from lightlib.core.trainer import Trainer

__all__ = [
    "Callback",
    "CombinedLoader",
    "DataModule",
    "LightningDataModule",
    "LightningModule",
    "Module",
    "Trainer",
    "__version__",
    "isolate_rng",
    "seed_everything",
]

_PLACES = {
    "Callback": "lightlib.callbacks.callback",
    "CombinedLoader": "lightlib.core.combined",
    "DataModule": "lightlib.core.datamodule",
    "Module": "lightlib.core.module",
    "Trainer": "lightlib.core.trainer",
    "isolate_rng": "lightlib.core.seed",
    "seed_everything": "lightlib.core.seed",
}
_ALIASES = {"LightningModule": "Module", "LightningDataModule": "DataModule"}


def __getattr__(name: str) -> Any:
    original = _ALIASES.get(name, name)
    if original not in _PLACES:
        raise AttributeError(f"module 'lightlib' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[original]), original)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
