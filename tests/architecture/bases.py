"""Base classes with one subclass, found in the syntax trees of the package.

A base has two subclasses, or is public, or a Protocol. Otherwise a reader has to look in two files for one class: merge
them, or let one hold the other. Lightning's class tree in compat is not judged, but its classes count.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from lightlib.index import INDEX
from tests.architecture.rules import File

PUBLIC = {row.name for rows in INDEX.values() for row in rows}
_FAMILIES = ("Protocol", "TypedDict", "Exception", "Warning", "Error")  # a family, by the end of a base's name
COMPAT = "lightlib_lightning"
# Classes that stay the base of one class, with the reason.
EXCEPTIONS = {
    "lightlib.callbacks.checkpoint.named.NamedCheckpoints": "one file of both classes would have more than 600 lines",
    "lightlib.command.train.ConfigurationCLI": "`lightlib fit` is this class itself, and `lightlib plan` runs nothing",
    "lightlib.config.compatible.CompatibleParser": "Lightning's ways of jsonargparse, apart from the parser's",
    "lightlib.core.module.from_model.ModelSteps": "one file with Module would have more than 600 lines",
    "lightlib.core.module.hook_defaults.ModelHooks": "one file with Module would have more than 600 lines",
    "lightlib.core.session_state.SessionState": "one file with Session would have more than 600 lines",
    "lightlib.core.values.hparams.AttributeDict": "users get it: it is the type of `hparams`",
    "lightlib.data.sharding.ShardedSampler": "loaders with a sampler use it itself",
    "lightlib.samplers.distributed.UnrepeatedDistributedSampler": "users build it: Lightning has it by this name",
}


class Class(NamedTuple):
    """One class: its module, its name, its line and the full names of its bases."""

    module: str
    name: str
    line: int
    bases: tuple[str, ...]

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


def classes(files: list[File]) -> list[Class]:
    """Return the classes at the top of files."""
    return [found for file in files for found in _classes_of(file)]


def _classes_of(file: File) -> Iterator[Class]:
    tree = ast.parse(file.text)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = (ast.unparse(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases)
            full = (base.partition(".") for base in bases)
            yield Class(
                file.module,
                node.name,
                node.lineno,
                tuple(names.get(first, f"{file.module}.{first}") + dot + rest for first, dot, rest in full),
            )


def bases_of_one(files: list[File]) -> dict[str, str]:
    """Return by name the private classes that are the base of exactly one class, each with a sentence."""
    found = classes(files)
    subclasses: dict[str, list[Class]] = defaultdict(list)
    for each in found:
        for base in each.bases:
            subclasses[base].append(each)
    lone = {each: subclasses[each.path][0] for each in found if len(subclasses[each.path]) == 1 and _is_judged(each)}
    return {
        each.path: f"{each.module.replace('.', '/')}.py:{each.line}: {each.name} is the base of {only.path} alone; "
        "make them one class, or let one hold the other."
        for each, only in lone.items()
        if not only.module.startswith(COMPAT)
    }


def _is_judged(each: Class) -> bool:
    is_family = any(base.endswith(_FAMILIES) for base in each.bases)
    return not is_family and each.name not in PUBLIC and not each.module.startswith(COMPAT)
