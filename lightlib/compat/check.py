"""Scans a project for its use of Lightning: names that run unchanged, differ or are absent."""

from __future__ import annotations

import ast
import re
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightlib.compat import absent, missing, objects
from lightlib.compat.finder import ROOTS, canonical
from lightlib.compat.objects import names
from lightlib.compat.statuses import anchor, sections

__all__ = ["FAILING", "STATUSES", "Finding", "scan"]

STATUSES = ("unchanged", "differs", "later", "absent", "private", "unknown")
FAILING = ("later", "absent", "private", "unknown")

# Sections of statuses.json with the members of objects, by the class that has them in Lightning.
_MEMBERS = {
    "Trainer": ("Trainer methods", "Trainer properties"),
    "LightningModule": ("Module methods", "Module properties"),
    "LightningDataModule": ("DataModule",),
    "Callback": ("Callback",),
    "Fabric": ("Fabric members",),
}
_CLASSES = ("callbacks", "loggers", "strategies", "precision", "cli", "pytorch.utilities", "pytorch.plugins")
_OF_FABRIC = ("fabric.utilities", "fabric.plugins", "fabric")
_SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache", "build", "dist"}
_PATH = re.compile(r"(?<![\w./-])(?:lightning|pytorch_lightning|lightning_fabric)(?:\.\w+)+")
_OWN = re.compile(r"\bself\.(_\w+)(?:: [^=\n]*)? = |^\s+def (?=_)(\w+)", re.MULTILINE)  # of the project's classes
_KEY = re.compile(r"\b(?:class_path|_target_)\W+$")


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


def scan(path: Path) -> list[Finding]:
    """Return the uses of Lightning in a file, or in all Python and YAML files of a folder, by file and line.

    Raises:
        FileNotFoundError: There is nothing at `path`.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    root = path if path.is_dir() else path.parent
    findings: set[Finding] = set()
    own: set[str] = set()
    for file in _files(path):
        name = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8", errors="replace")
        findings.update(_scan_python(name, text) if file.suffix == ".py" else _scan_yaml(name, text))
        own.update(f"{match[1] or match[2]}" for match in _OWN.finditer(text))
    return sorted(one for one in findings if one.status != "private" or one.name.removeprefix("Trainer.") not in own)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        inside = file.relative_to(path).parts
        if file.suffix in {".py", ".yaml", ".yml"} and file.is_file() and not _SKIPPED.intersection(inside):
            yield file


def _scan_yaml(file: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("#")[0]
        for match in _PATH.finditer(code):
            found = _of_path(file, number, match[0])
            if found.status != "unknown" or _KEY.search(code[: match.start()]):
                yield found


def _scan_python(file: str, text: str) -> Iterator[Finding]:
    if not any(root in text for root in ROOTS):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like are not our subject
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        yield Finding(file, line, "unknown", file, f"it cannot be parsed: {getattr(error, 'msg', error)}")
        return
    imports = _Imports(file)
    imports.visit(tree)
    yield from imports.found
    uses = _Uses(file, imports.bound)
    for node, place in _walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _of_text(file, node.lineno, node.value)
        elif imports.bound:
            yield from uses.of(node, place)


@dataclass(frozen=True)
class _Place:
    """Where an expression is.

    Args:
        function: The name of the innermost function around it.
        statement: The statement that it is in; the condition or the like of one with a body.
        conditional: Whether it is in a branch of an `if` or `try`, such as one for another version.
    """

    function: str = ""
    statement: ast.AST | None = None
    conditional: bool = False

    @property
    def code(self) -> str:
        return f"{self.function}: {ast.unparse(self.statement)}" if self.statement is not None else ""


def _walk(tree: ast.AST) -> Iterator[tuple[ast.AST, _Place]]:
    """Yield all nodes, as `ast.walk` does, with their places."""
    waiting = deque([(tree, _Place())])
    while waiting:
        node, place = waiting.popleft()
        yield node, place
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                waiting.append((child, _Place(child.name)))
            elif isinstance(child, ast.stmt):
                branch = place.conditional or isinstance(node, (ast.If, ast.Try))
                statement = None if hasattr(child, "body") else child
                waiting.append((child, _Place(place.function, statement, branch)))
            else:
                inside = place if place.statement is not None else replace(place, statement=child)
                waiting.append((child, inside))


def _of_text(file: str, line: int, text: str) -> Iterator[Finding]:
    """Yield the finding for a string that is a path, such as that of a patched name, if something is wrong with it."""
    if _PATH.fullmatch(text):
        found = _of_path(file, line, text)
        if found.status in ("later", "absent", "private"):
            yield found


def _is_lightning(path: str) -> bool:
    return path.partition(".")[0] in ROOTS


class _Imports(ast.NodeVisitor):
    """Collects the names of a file that stand for Lightning's, and the findings of its imports."""

    def __init__(self, file: str) -> None:
        self.bound: dict[str, str] = {}
        self.found: list[Finding] = []
        self._file = file
        self._tried = self._conditional = False

    def visit_Try(self, node: ast.Try) -> None:
        outer, self._tried = self._tried, True  # whatever the handlers catch: the project expects a failure
        for child in (*node.body, *node.orelse, *node.handlers):
            self.visit(child)
        self._tried = outer
        for child in node.finalbody:
            self.visit(child)

    def visit_If(self, node: ast.If) -> None:
        outer, self._conditional = self._conditional, True  # one branch for each version, for instance
        self.generic_visit(node)
        self._conditional = outer

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if _is_lightning(alias.name):
                root = alias.name.partition(".")[0]
                self.bound[alias.asname or root] = alias.name if alias.asname else root
                self._add(node.lineno, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and not node.level and _is_lightning(node.module):
            for alias in node.names:
                if alias.name == "*":
                    self._add(node.lineno, node.module)
                else:
                    self.bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    self._add(node.lineno, f"{node.module}.{alias.name}")

    def _add(self, line: int, path: str) -> None:
        found = _of_path(self._file, line, path)
        expected = found.status == "unknown" and (self._tried or self._conditional)
        if not expected and not (found.status == "private" and self._tried):
            self.found.append(found)


class _Uses:
    """Finds the uses of Lightning in one parsed file, but for its imports."""

    def __init__(self, file: str, bound: dict[str, str]) -> None:
        self._file = file
        self._bound = bound
        self._kinds: dict[str, str] = {}  # classes and variables of the file: the class of Lightning that they are of

    def of(self, node: ast.AST, place: _Place) -> Iterator[Finding]:
        """Yield those of one node."""
        if isinstance(node, ast.ClassDef):
            yield from self._class(node)
        elif isinstance(node, ast.Call):
            yield from self._call(node, place)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node, place)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            kind = self._kind(node.value.func)
            for target in node.targets:
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
        for member in node.body:
            if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) and not member.name.startswith("_"):
                yield from _member(self._file, member.lineno, kind, member.name, _Place(member.name, member))

    def _call(self, node: ast.Call, place: _Place) -> Iterator[Finding]:
        kind = self._kind(node.func)
        owner = self._owner(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if owner and isinstance(node.func, ast.Attribute):
            entry = _entry(_MEMBERS[owner], node.func.attr)
            arguments, shown = dict(entry.get("arguments", {})), f"{owner}.{node.func.attr}"
            if "argument" in entry:
                arguments[entry["argument"]] = entry
        elif kind in ("Trainer", "Fabric"):
            arguments, shown = sections()[f"{kind} arguments"], kind
        else:
            of_fabric = (self._path(node.func) or "").startswith(("lightning.fabric", "lightning_fabric"))
            made = _entry(_OF_FABRIC if of_fabric else (*_CLASSES, *_OF_FABRIC), kind or "")
            arguments, shown = made.get("arguments", {}), kind or ""
            if "where" in made and _shows(made, place=_Place(statement=node)):
                yield _listed(self._file, node.lineno, shown, made)
        for keyword in node.keywords:
            entry = arguments.get(keyword.arg or "", {})
            if entry.get("status", "same") != "same" and _shows(entry, keyword.value):
                yield _listed(self._file, node.lineno, f"{shown}({keyword.arg}=)", entry)

    def _attribute(self, node: ast.Attribute, place: _Place) -> Iterator[Finding]:
        path = self._path(node)
        if path and canonical(path.rpartition(".")[0]) in names():  # the names of classes are found where they begin
            found = _of_path(self._file, node.lineno, path)
            if found.status != "unknown" or not place.conditional:
                yield found
        owner = self._owner(node.value)
        if owner and node.attr != "_target_":  # the key of a Hydra configuration
            yield from _member(self._file, node.lineno, owner, node.attr, place)


def _is_configuration(node: ast.expr) -> bool:
    """Whether it is a section of a configuration, such as ``cfg.trainer``, and not a Trainer."""
    owner = node.value if isinstance(node, ast.Attribute) else None
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return re.search(r"(^|_)(cfg|conf|config|configs|args|opts?|hydra)$", name.lower()) is not None


def _entry(where: Iterable[str], name: str) -> dict[str, Any]:
    """Return the entry of a name in the first of some sections that has it; empty without one."""
    return next((sections()[section][name] for section in where if name in sections()[section]), {})


def _shows(entry: dict[str, Any], value: ast.expr | None = None, place: _Place | None = None) -> bool:
    """Whether a difference shows: always, for some literal values only, or in some code only."""
    if "where" in entry:
        return place is not None and re.search(entry["where"], place.code) is not None
    when: str | None = entry.get("when")
    if when is None:
        return True
    return bool(when) and isinstance(value, ast.Constant) and re.search(when, str(value.value)) is not None


def _listed(file: str, line: int, name: str, entry: dict[str, Any]) -> Finding:
    """Return the finding for an entry of statuses.json."""
    status = entry["status"] if entry["status"] in FAILING else "differs"
    mark = anchor(entry["status"], entry["why"])
    return Finding(file, line, status, name, entry["why"], f"differences.md#{mark}" if mark else "")


def _member(file: str, line: int, kind: str, name: str, place: _Place) -> Iterator[Finding]:
    """Yield the finding for a member of an object of Lightning, unless it is as in Lightning."""
    entry = _entry(_MEMBERS.get(kind, ()), name)
    if kind == "Trainer" and name in objects.INTERNALS:
        yield Finding(file, line, "unchanged", f"{kind}.{name}")
    elif entry and entry["status"] != "same" and "argument" not in entry and _shows(entry, place=place):
        yield _listed(file, line, f"{kind}.{name}", entry)
    elif kind in ("Trainer", "Fabric") and not entry and name.startswith("_") and not name.startswith("__"):
        public = ", ".join(sorted(objects.INTERNALS)) if kind == "Trainer" else "Fabric's public members"
        reason = f"a private name that lightlib.compat does not provide; it provides {public}"
        yield Finding(file, line, "private", f"{kind}.{name}", reason)


def _of_path(file: str, line: int, path: str) -> Finding:
    """Return the finding for a name given by its path."""
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
            return Finding(file, line, "private", path, "a private name that lightlib.compat does not provide")
        place = missing.place_of(module, name) if len(rest) == 1 else ""
        whose = "Lightning 2.6" if place.startswith("lightning") else "lightlib"
        reason = f"{whose} has it in {place}" if place else "Lightning 2.6 does not have it, either"
        return Finding(file, line, "unknown", path, reason)
    entry = _entry(_OF_FABRIC if where.startswith("fabric") else _CLASSES, name)
    if entry.get("status") in ("different", "ignored") and _shows(entry):
        return _listed(file, line, path, entry)
    return Finding(file, line, "unchanged", path)


def _listed_as(name: str) -> tuple[str, str]:
    """Return the status of a name that is not provided, and the place that lists it."""
    entry = _entry((*_CLASSES, *_OF_FABRIC, "elsewhere"), name)
    mark = anchor(entry["status"], entry["why"]) if entry.get("why") else ""
    return "later" if entry.get("status") == "later" else "absent", f"differences.md#{mark}" if mark else ""
