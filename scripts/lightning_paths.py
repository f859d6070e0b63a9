"""Records the names of all modules of an installed Lightning 2.6, for compat and for its test.

Run it with an interpreter whose environment has Lightning: `PYTHONPATH=. python scripts/lightning_paths.py`. One sweep
writes lightlib_lightning/lightning_2_6.json, the names, and tests/compat/names/kinds_2_6.json, what kind of object each
is. Of private names it records those that lightlib_lightning/objects.py serves.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import pkgutil
import sys
import types
import typing
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from lightlib_lightning.objects import PRIVATE

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "lightlib_lightning/lightning_2_6.json"
KINDS = ROOT / "tests/compat/names/kinds_2_6.json"
# Names of torch that users look for in Lightning's modules.
OF_TORCH = {"LRScheduler", "ReduceLROnPlateau", "SUPPORTED_NODES", "default_pg_timeout"}
# Modules that need a package of a server, which is not installed next to Lightning.
OF_A_SERVER = {
    "pytorch.serve": ["ServableModule", "ServableModuleValidator"],
    "pytorch.serve.servable_module": ["ServableModule"],
    "pytorch.serve.servable_module_validator": ["ServableModule", "ServableModuleValidator"],
}


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those in an `if` or `try`."""
    for one in body:
        yield one
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from statements(getattr(one, field, None) or [])
            for handler in getattr(one, "handlers", []):
                yield from statements(handler.body)


def imports(module: types.ModuleType) -> dict[str, str]:
    """Return the origin of each name that a module imports: ``module:name``, or a module alone."""
    found: dict[str, str] = {}
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    for one in statements(ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8")).body):
        if isinstance(one, ast.Import):
            for alias in one.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(one, ast.ImportFrom):
            place = one.module or ""
            if one.level:
                place = importlib.util.resolve_name("." * one.level + place, package)
            found |= {alias.asname or alias.name: f"{place}:{alias.name}" for alias in one.names}
    return found


def names_of(module: types.ModuleType) -> tuple[list[str], dict[str, str]]:
    """Return the public names that a module binds or imports from Lightning, and those of other packages."""
    origins, below = imports(module), f"{module.__name__}."
    own: list[str] = []
    others: dict[str, str] = {}
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or (isinstance(value, types.ModuleType) and value.__name__.startswith(below)):
            continue
        origin = origins.get(name, "")
        if isinstance(value, types.ModuleType):
            others[name] = value.__name__
        elif origin and not origin.startswith("lightning") and name not in OF_TORCH:
            others[name] = origin
        else:
            own.append(name)
    return own, others


def modules() -> dict[str, types.ModuleType]:
    """Return all modules of Lightning by their path below `lightning`, also those by former paths."""
    for root in ("pytorch", "fabric"):
        package = importlib.import_module(f"lightning.{root}")
        for one in pkgutil.walk_packages(package.__path__, f"lightning.{root}."):
            try:
                importlib.import_module(one.name)
            except ImportError as error:  # a package of a server
                print(f"{one.name}: {error}", file=sys.stderr)
    found = {
        name: module
        for name, module in sys.modules.items()
        if name.partition(".")[0] == "lightning" and not name.endswith("__")  # no lightning.__about__ and the like
    }
    return {name.removeprefix("lightning").lstrip("."): module for name, module in sorted(found.items())}


def kind_of(value: object) -> str:
    """Return the kind of an object, in a word that also holds for the counterpart in lightlib."""
    if isinstance(value, types.ModuleType):
        return "module"
    if inspect.isclass(value) and value is not typing.Any and not isinstance(value, types.GenericAlias):
        return "class"
    if isinstance(value, typing.TypeVar):
        return "TypeVar"
    if type(value).__module__ == "typing" or value is typing.Any:
        return "alias"
    if isinstance(value, (types.GenericAlias, types.UnionType)):
        return "alias"
    return "function" if callable(value) and hasattr(value, "__name__") else type(value).__name__


def table_of(found: dict[str, types.ModuleType]) -> str:
    """Return the text of the table: of each module its public names, those of other packages, and private ones."""
    private = {path: sorted(PRIVATE.keys() & vars(module).keys()) for path, module in found.items()}
    swept = {path: (*names_of(module), private[path]) for path, module in found.items()} | {
        path: (names, {}, []) for path, names in OF_A_SERVER.items()
    }
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for _, others, _ in swept.values():
        for name, origin in others.items():
            counted[name][origin] += 1
    usual = {name: counts.most_common(1)[0][0] for name, counts in counted.items()}
    rows = []
    for path, (own, others, hidden) in sorted(swept.items()):
        words = [name if usual[name] == origin else f"{name}={origin}" for name, origin in others.items()]
        text = "|".join(" ".join(part) for part in (own, words, hidden))
        rows.append(f"  {json.dumps(path)}: {json.dumps(text)}")
    origins = ",\n".join(f"  {json.dumps(name)}: {json.dumps(origin)}" for name, origin in sorted(usual.items()))
    return '{\n"modules": {\n' + ",\n".join(rows) + '\n},\n"origins": {\n' + origins + "\n}\n}\n"


def kinds_of(found: dict[str, types.ModuleType]) -> str:
    """Return the text of the record of kinds: the names by kind, and by path where a name is of another kind."""
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    each: dict[tuple[str, str], str] = {}
    for path, module in found.items():
        own, others = names_of(module)
        for name in (*own, *others):
            each[path, name] = kind = kind_of(getattr(module, name))
            counted[name][kind] += 1
    usual = {name: counts.most_common(1)[0][0] for name, counts in counted.items()}
    by_kind: dict[str, list[str]] = defaultdict(list)
    for name, kind in sorted(usual.items()):
        by_kind[kind].append(name)
    for (path, name), kind in sorted(each.items()):
        if kind != usual[name]:
            by_kind[kind].append(f"{path}.{name}")
    rows = ",\n".join(f"{json.dumps(kind)}: {json.dumps(' '.join(names))}" for kind, names in sorted(by_kind.items()))
    return f"{{\n{rows}\n}}\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    swept = modules()
    TABLE.write_text(table_of(swept), encoding="utf-8")
    KINDS.write_text(kinds_of(swept), encoding="utf-8")
