"""Findings: the uses of Lightning that `lightlib compat check` lists, and the status of each name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lightlib_lightning import absent, missing, objects
from lightlib_lightning.command.members import View, view_of
from lightlib_lightning.finder import canonical
from lightlib_lightning.objects import names
from lightlib_lightning.statuses import anchor, sections

__all__ = [
    "CLASSES",
    "FAILING",
    "MEMBERS",
    "NOT_PROVIDED",
    "OF_FABRIC",
    "Finding",
    "Place",
    "entry_of",
    "listed",
    "member",
    "of_path",
    "public",
    "shows",
]

FAILING = ("later", "absent", "private", "unknown")
NOT_PROVIDED = "a private name that lightlib.compat does not provide"

# Sections of statuses.json with the members of objects, by the class that has them in Lightning.
MEMBERS = {
    "Trainer": ("Trainer methods", "Trainer properties"),
    "LightningModule": ("Module methods", "Module properties"),
    "LightningDataModule": ("DataModule",),
    "Callback": ("Callback",),
    "Fabric": ("Fabric members",),
}
CLASSES = ("callbacks", "loggers", "strategies", "precision", "cli", "pytorch.utilities", "pytorch.plugins")
OF_FABRIC = ("fabric.utilities", "fabric.plugins", "fabric")


@dataclass(frozen=True, order=True)
class Finding:
    """One use of Lightning.

    Args:
        file: Relative to the scanned folder.
        line: Counted from 1.
        status: ``"unchanged"``; ``"differs"``, with the reason, where this use is affected; ``"later"`` and
            ``"absent"``, with what to use; ``"private"``, a private name that compat does not provide;
            ``"unknown"``, which Lightning 2.6 does not have, either.
        name: What is used, as the file names it.
        reason: What differs, or what to use; empty for what runs unchanged.
        see: The place in the documentation that lists the difference.
    """

    file: str
    line: int
    status: str
    name: str
    reason: str = ""
    see: str = ""


@dataclass(frozen=True)
class Place:
    """Where an expression is.

    Args:
        function: The name of the innermost function around it.
        statement: The statement that it is in; the condition or the like of one with a body.
        conditional: Whether it is in a branch of an `if` or `try`, such as one for another version.
        tried: Whether it is in a `try`, or after `hasattr`: the program can do without it.
        owner: The name of the innermost class around it.
    """

    function: str = ""
    statement: ast.AST | None = None
    conditional: bool = False
    tried: bool = False
    owner: str = ""

    def expects(self, finding: Finding) -> bool:
        """Whether the program expects a use to fail here, and can do without it."""
        return (finding.status == "unknown" and (self.conditional or self.tried)) or (
            finding.status == "private" and self.tried
        )

    @property
    def code(self) -> str:
        return f"{self.function}: {ast.unparse(self.statement)}" if self.statement is not None else ""


def entry_of(where: Iterable[str], name: str) -> dict[str, Any]:
    """Return the entry of a name in the first of some sections that has it; empty without one."""
    return next((sections()[section][name] for section in where if name in sections()[section]), {})


def shows(entry: dict[str, Any], value: ast.expr | None = None, place: Place | None = None) -> bool:
    """Whether a difference shows: always, for some literal values only, or in some code only."""
    if "where" in entry:
        return place is not None and re.search(entry["where"], place.code) is not None
    when: str | None = entry.get("when")
    if when is None:
        return True
    return bool(when) and isinstance(value, ast.Constant) and re.search(when, str(value.value)) is not None


def listed(file: str, line: int, name: str, entry: dict[str, Any]) -> Finding:
    """Return the finding for an entry of statuses.json."""
    status = entry["status"] if entry["status"] in FAILING else "differs"
    mark = anchor(entry["status"], entry["why"])
    return Finding(file, line, status, name, entry["why"], f"names.md#{mark}" if mark else "")


def member(file: str, line: int, kind: str, name: str, place: Place) -> Iterator[Finding]:
    """Yield the finding for a member of an object of Lightning, unless it is as in Lightning."""
    entry = entry_of(MEMBERS.get(kind, ()), name)
    if kind == "Trainer" and name in objects.INTERNALS:
        yield Finding(file, line, "unchanged", f"{kind}.{name}")
    elif entry and entry["status"] != "same" and "argument" not in entry and shows(entry, place=place):
        yield listed(file, line, f"{kind}.{name}", entry)
    elif kind in ("Trainer", "Fabric") and not entry and name.startswith("_") and not name.startswith("__"):
        public = ", ".join(sorted(objects.INTERNALS)) if kind == "Trainer" else "Fabric's public members"
        reason = f"{NOT_PROVIDED}; it provides {public}"
        yield Finding(file, line, "private", f"{kind}.{name}", reason)


def of_path(file: str, line: int, path: str, assigned: bool = False) -> Finding:
    """Return the finding for a name given by its path.

    Args:
        file, line: Where it is.
        path: With the root by which the program imports Lightning.
        assigned: Whether the program assigns to it, as a patch does.
    """
    module, rest = path, list[str]()
    while canonical(module) not in names():
        module, _, last = module.rpartition(".")
        rest.insert(0, last)
    if not rest or (rest[0].startswith("__") and rest[0].endswith("__")):
        return Finding(file, line, "unchanged", path)
    where, name = canonical(module), rest[0]
    if objects.provided(where, name) is None:
        if name in names()[where].split():
            status, see = _listed_as(name)
            return Finding(file, line, status, path, absent.INSTEAD.get(name, "not provided"), see)
        if any(part.startswith("_") for part in path.split(".")):
            return Finding(file, line, "private", path, NOT_PROVIDED)
        place = missing.place_of(module, name) if len(rest) == 1 else ""
        whose = "Lightning 2.6" if place.startswith("lightning") else "lightlib"
        reason = f"{whose} has it in {place}" if place else "Lightning 2.6 does not have it, either"
        return Finding(file, line, "unknown", path, reason)
    if len(rest) > 1 and (view := view_of(name)) is not None and not rest[1].startswith("__"):
        return _of_private_class(Finding(file, line, "unchanged", path), rest[1], view, assigned)
    entry = entry_of(OF_FABRIC if where.startswith("fabric") else CLASSES, name)
    if entry.get("status") in ("different", "ignored") and shows(entry):
        return listed(file, line, path, entry)
    return Finding(file, line, "unchanged", path)


def _of_private_class(use: Finding, name: str, view: View, assigned: bool) -> Finding:
    """Return the finding for a member of a private class of Lightning's that compat serves."""
    if assigned:
        return replace(use, status="private", reason="it is replaced, but lightlib does not call it")
    if name in view.names:
        return use
    return replace(use, status="private", reason=f"{NOT_PROVIDED}; the class has {', '.join(public(view))}")


def public(view: View) -> list[str]:
    """Return the names of a view, except Python's."""
    return sorted(name for name in view.names if not name.startswith("__"))


def _listed_as(name: str) -> tuple[str, str]:
    """Return the status of a name that is not provided, and the place that lists it."""
    entry = entry_of((*CLASSES, *OF_FABRIC, "elsewhere"), name)
    mark = anchor(entry["status"], entry["why"]) if entry.get("why") else ""
    return "later" if entry.get("status") == "later" else "absent", f"names.md#{mark}" if mark else ""
