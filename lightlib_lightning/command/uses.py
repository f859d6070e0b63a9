"""Uses of Lightning's objects in one parsed file: members, arguments, overrides, private attributes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from lightlib_lightning.command.findings import (
    CLASSES,
    MEMBERS,
    NOT_PROVIDED,
    OF_FABRIC,
    Finding,
    Place,
    entry_of,
    listed,
    member,
    of_path,
    public,
    shows,
)
from lightlib_lightning.command.members import VIEWS, view, view_of
from lightlib_lightning.finder import canonical
from lightlib_lightning.objects import names
from lightlib_lightning.statuses import sections
from lightlib_lightning.tools.lacking import lacking

__all__ = ["Uses"]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Uses:
    """Finds the uses of Lightning in one parsed file, but for its imports."""

    def __init__(self, file: str, bound: dict[str, str]) -> None:
        self._file = file
        self._bound = bound
        self._kinds: dict[str, str] = {}  # classes and variables of the file: the class of Lightning that they are of

    def of(self, node: ast.AST, place: Place) -> Iterator[Finding]:
        """Yield those of one node."""
        if isinstance(node, ast.ClassDef):
            yield from self._class(node)
        elif isinstance(node, ast.Call):
            yield from self._call(node, place)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node, place)
            yield from self._attribute_of_view(node, place)
            yield from self._attribute_of_self(node, place)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            self._note(node.targets, node.value.func)
        elif isinstance(node, ast.AnnAssign):
            self._note([node.target], node.annotation)
        elif isinstance(node, ast.arg) and node.annotation is not None:
            self._note([ast.Name(node.arg)], node.annotation)

    def _note(self, targets: Iterable[ast.expr], of: ast.expr) -> None:
        """Note variables of a class of Lightning's, which is called or annotated."""
        text = of.value if isinstance(of, ast.Constant) and isinstance(of.value, str) else ""
        kind = self._kind(ast.parse(text, mode="eval").body if re.fullmatch(r"[\w.]+", text) else of)
        for target in targets:
            if kind and isinstance(target, ast.Name):
                self._kinds[target.id] = kind

    def _path(self, node: ast.expr) -> str | None:
        """Return Lightning's path of an expression such as ``pl.callbacks.Timer``."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        start = self._bound.get(node.id) if isinstance(node, ast.Name) else None
        return ".".join([start, *parts]) if start else None

    def _kind(self, node: ast.expr) -> str | None:
        path = self._path(node)
        if path:
            return path.rpartition(".")[2]
        return self._kinds.get(node.id) if isinstance(node, ast.Name) else None

    def _owner(self, node: ast.expr) -> str | None:
        """Return the class of Lightning that a variable or attribute is of, by its value or its name."""
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name == "trainer" or name.endswith("_trainer"):
            return None if _is_configuration(node) else "Trainer"
        kind = self._kinds.get(name) if isinstance(node, ast.Name) else None
        return kind if kind in ("Trainer", "Fabric") else None

    def _class(self, node: ast.ClassDef) -> Iterator[Finding]:
        kinds = [kind for base in node.bases if (kind := self._kind(base))]
        if not kinds:
            return
        self._kinds[node.name] = kinds[0]
        is_callback = kinds[0] in sections()["callbacks"]
        kind = "Callback" if is_callback else kinds[0]
        for statement in node.body:
            for name in _defined(statement):
                if name in lacking(kinds[0]):
                    reason = f"it overrides a member of Lightning's {kinds[0]} that lightlib does not use"
                    yield Finding(self._file, statement.lineno, "differs", f"{kinds[0]}.{name}", reason)
                elif not name.startswith("_") and isinstance(statement, _FUNCTIONS):
                    yield from member(self._file, statement.lineno, kind, name, Place(name, statement))

    def _call(self, node: ast.Call, place: Place) -> Iterator[Finding]:
        kind = self._kind(node.func)
        owner = self._owner(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if owner and isinstance(node.func, ast.Attribute):
            entry = entry_of(MEMBERS[owner], node.func.attr)
            arguments, shown = dict(entry.get("arguments", {})), f"{owner}.{node.func.attr}"
            if "argument" in entry:
                arguments[entry["argument"]] = entry
        elif kind in ("Trainer", "Fabric"):
            arguments, shown = sections()[f"{kind} arguments"], kind
        else:
            of_fabric = (self._path(node.func) or "").startswith(("lightning.fabric", "lightning_fabric"))
            class_entry = entry_of(OF_FABRIC if of_fabric else (*CLASSES, *OF_FABRIC), kind or "")
            arguments, shown = class_entry.get("arguments", {}), kind or ""
            if "where" in class_entry and shows(class_entry, place=Place(statement=node)):
                yield listed(self._file, node.lineno, shown, class_entry)
        for keyword in node.keywords:
            entry = arguments.get(keyword.arg or "", {})
            if entry.get("status", "same") != "same" and shows(entry, keyword.value):
                yield listed(self._file, node.lineno, f"{shown}({keyword.arg}=)", entry)

    def _attribute(self, node: ast.Attribute, place: Place) -> Iterator[Finding]:
        path = self._path(node)
        if path and canonical(path.rpartition(".")[0]) in names():  # the names of classes are found where they begin
            finding = of_path(self._file, node.lineno, path)
            if not place.expects(finding):
                yield finding
        elif path and view_of(path.rpartition(".")[0].rpartition(".")[2]) is not None:
            finding = of_path(self._file, node.lineno, path, assigned=isinstance(node.ctx, ast.Store))
            if not place.expects(finding):
                yield finding
        owner = self._owner(node.value)
        if owner and node.attr != "_target_":  # the key of a Hydra configuration
            for member_finding in member(self._file, node.lineno, owner, node.attr, place):
                if not place.expects(member_finding):
                    yield member_finding

    def _attribute_of_view(self, node: ast.Attribute, place: Place) -> Iterator[Finding]:
        """Yield the finding for an attribute of a loop or connector of a Trainer, unless it acts as in Lightning."""
        kind = self._view(node.value)
        seen_view = view(kind) if kind else None
        if seen_view is None or node.attr.startswith("__"):
            return
        name = "Trainer." + ast.unparse(node).rpartition("trainer.")[2]
        if isinstance(node.ctx, ast.Store):
            if node.attr not in seen_view.settable:
                yield Finding(self._file, node.lineno, "private", name, "it is assigned, but lightlib does not use it")
        elif node.attr not in seen_view.names and not place.tried:
            reason = f"{NOT_PROVIDED}; this object has {', '.join(public(seen_view))}"
            yield Finding(self._file, node.lineno, "private", name, reason)

    def _view(self, node: ast.expr) -> str | None:
        """Return the class of the view that an expression is, such as ``trainer.fit_loop.epoch_loop``."""
        if not isinstance(node, ast.Attribute):
            return None
        if self._owner(node.value) == "Trainer":
            return VIEWS.get(node.attr)
        outer = self._view(node.value)
        outer_view = view(outer) if outer else None
        return outer_view.views.get(node.attr) if outer_view is not None else None

    def _attribute_of_self(self, node: ast.Attribute, place: Place) -> Iterator[Finding]:
        """Yield the finding for a private attribute that only Lightning's base class has."""
        kind = self._kinds.get(place.owner, "")
        if not node.attr.startswith("_") or node.attr not in lacking(kind):
            return
        of_super = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
        if not of_super and ast.unparse(node.value) != "self":
            return
        if isinstance(node.ctx, ast.Load):
            if not place.tried:
                name = f"super().{node.attr}" if of_super else f"{kind}.{node.attr}"
                reason = f"{NOT_PROVIDED}; lightlib's {kind} does not have it"
                yield Finding(self._file, node.lineno, "private", name, reason)
        elif kind in sections()["callbacks"] or kind in sections()["loggers"]:
            reason = f"it assigns an attribute that Lightning's {kind} reads, and lightlib's does not"
            yield Finding(self._file, node.lineno, "differs", f"{kind}.{node.attr}", reason)


def _is_configuration(node: ast.expr) -> bool:
    """Whether it is a section of a configuration, such as ``cfg.trainer``, and not a Trainer."""
    owner = node.value if isinstance(node, ast.Attribute) else None
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return re.search(r"(^|_)(cfg|conf|config|configs|args|opts?|hparams|hydra|settings)$", name.lower()) is not None


def _defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a class body defines."""
    if isinstance(node, _FUNCTIONS):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
