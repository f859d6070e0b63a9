"""Writes lightlib/compat/lightning_2_6.json, the modules and names of an installed Lightning 2.6.

Run it with an interpreter whose environment has Lightning: `python scripts/lightning_paths.py`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
import types
import typing
import warnings
from pathlib import Path

WRITTEN = Path(__file__).resolve().parents[1] / "lightlib/compat/lightning_2_6.json"
ROOTS = ("pytorch", "fabric")
# Names that files import for themselves: they are not Lightning's.
OF_OTHERS = {
    "Any",
    "Optional",
    "Union",
    "TYPE_CHECKING",
    "Callable",
    "Literal",
    "override",
    "log",
    "T",
    "TBroadcast",
    "TReduce",
}
# Type aliases, which have no `__module__`.
ALIASES = """
    ArgsType DDPStrategy DataType EVAL_DATALOADERS LRScheduler LRSchedulerTypeTuple LRSchedulerTypeUnion Optimizable
    OptimizerLRScheduler ReduceLROnPlateau STEP_OUTPUT TRAIN_DATALOADERS TorchDistributedBackend
"""


# Modules that need a package of a server, which is not installed next to Lightning.
OF_A_SERVER = {
    "pytorch.serve": ["ServableModule", "ServableModuleValidator"],
    "pytorch.serve.servable_module": ["ServableModule"],
    "pytorch.serve.servable_module_validator": ["ServableModule", "ServableModuleValidator"],
}


def is_of_lightning(name: str, value: object) -> bool:
    """Whether a user could look for a name in a module: defined by Lightning, and not private or another library's."""
    if name.startswith("_") or name in OF_OTHERS or isinstance(value, (types.ModuleType, typing.TypeVar)):
        return False
    if name in ALIASES.split():
        return True
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__module__.startswith("lightning")
    origin = getattr(value, "__module__", None)
    return origin is None or not isinstance(origin, str) or origin.startswith("lightning")


def names_of(path: str) -> list[str]:
    """Return the public names of a module of Lightning; none if it cannot be imported here."""
    try:
        module = importlib.import_module(path)
    except Exception as error:  # noqa: BLE001 (optional packages are missing, or too new)
        print(f"{path}: {error}", file=sys.stderr)
        return []
    return sorted(name for name, value in vars(module).items() if is_of_lightning(name, value))


def modules() -> dict[str, list[str]]:
    """Return the names of all modules below lightning.pytorch and lightning.fabric, by their path below `lightning`."""
    found = {"": sorted(names_of("lightning"))}
    for root in ROOTS:
        package = importlib.import_module(f"lightning.{root}")
        paths = [
            f"lightning.{root}",
            *(one.name for one in pkgutil.walk_packages(package.__path__, f"lightning.{root}.")),
        ]
        found |= {path.removeprefix("lightning."): names_of(path) for path in paths if "_graveyard" not in path}
    return found | OF_A_SERVER


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    rows = ",\n".join(f"{json.dumps(path)}: {json.dumps(' '.join(names))}" for path, names in sorted(modules().items()))
    WRITTEN.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
