"""A translation of the registry: Lightning's names and class paths."""

from __future__ import annotations

import os

import lightlib_lightning
from lightlib_lightning.class_paths import class_path, kind_of, translated
from lightlib_lightning.direct import attribute, find_spec
from lightlib_lightning.foreign import fix_for_import, foreign

__all__ = [
    "attribute", "class_path", "find_spec", "fix_for_import", "foreign", "kind_of", "start_of_commands", "translated",
]  # fmt: skip


def start_of_commands() -> list[str]:
    """Return ``compat run -m lightlib`` if this process was started so; empty if not."""
    switched_on = str(lightlib_lightning.SHIMS) in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return ["compat", "run", "-m", "lightlib"] if switched_on else []
