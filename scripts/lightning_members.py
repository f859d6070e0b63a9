"""Records the members of Lightning's classes that lightlib's counterparts lack.

Run it with an interpreter whose environment has Lightning 2.6: `PYTHONPATH=. python scripts/lightning_members.py`. It
writes lightlib_lightning/tools/members_2_6.json. By it compat warns of overrides that nothing calls, and `lightlib
compat check` finds them and uses of the private ones.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

from lightlib_lightning.objects import INTERNALS, target

TABLE = Path(__file__).resolve().parents[1] / "lightlib_lightning/tools/members_2_6.json"
PLACES = {
    "pytorch": ["Callback", "LightningDataModule", "LightningModule", "Trainer"],
    "pytorch.callbacks": None,
    "pytorch.cli": ["LightningArgumentParser", "LightningCLI", "SaveConfigCallback"],
    "pytorch.loggers": ["CSVLogger", "CometLogger", "MLFlowLogger", "TensorBoardLogger", "WandbLogger"],
    "fabric": ["Fabric"],
}
OF_OLD_FILES = "_legacy_state_key"  # which each callback has


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the targets of an assignment."""
    given = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for one in given:
        yield from one.elts if isinstance(one, ast.Tuple) else [one]


def is_self(node: ast.expr) -> bool:
    """Whether it is the object of a method."""
    return isinstance(node, ast.Name) and node.id == "self"


def members(kind: type, package: str) -> set[str]:
    """Return the members that a package gives a class: those of its classes, and attributes of the objects."""
    found: set[str] = set()
    for one in kind.__mro__:
        if one.__module__.partition(".")[0] == package:
            found |= set(vars(one))
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one)))):
                found |= {
                    each.attr for each in targets(node) if isinstance(each, ast.Attribute) and is_self(each.value)
                }
    return {name for name in found if "__" not in name and name != "_abc_impl"}


def missing(path: str, name: str) -> list[str]:
    """Return the private members, and of callbacks the public ones, that lightlib's class does not have."""
    theirs = getattr(importlib.import_module(f"lightning.{path}"), name)
    place, _, attribute = (target(path, name) or "").partition(":")
    ours = getattr(importlib.import_module(place), attribute)
    known = members(ours, "lightlib") | set(dir(ours)) | {OF_OLD_FILES} | (INTERNALS if name == "Trainer" else set())
    of_class = dir(theirs) if path == "pytorch.callbacks" else ()
    return sorted(one for one in members(theirs, "lightning") - known if one.startswith("_") or one in of_class)


def main() -> None:
    """Write the table."""
    table = {}
    for path, names in PLACES.items():
        for name in names or importlib.import_module(f"lightning.{path}").__all__:
            if inspect.isclass(getattr(importlib.import_module(f"lightning.{path}"), name)):
                table[name] = " ".join(missing(path, name))
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(words)}" for name, words in sorted(table.items()) if words)
    TABLE.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
